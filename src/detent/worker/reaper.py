"""The reaper: gives back what dead workers held, once its lease is over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from detent.errors import StoreError
from detent.lifecycle import JOB, Change, decide, insist
from detent.service import crew_moves
from detent.store import Job, Store
from detent.worker.outage import Outage

BEAT_SECONDS = 1.0
MOST_AT_ONCE = 500


class Reaper:
    """Looks for leases that are over, and tells when it found some; every process may have one."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage

    async def run(self) -> None:
        """From the first moment on: where workers die faster than it beats, nobody else would come to it."""
        while True:
            try:
                while await self.run_once() == MOST_AT_ONCE:
                    continue
                self._outage.over("reap")
            except StoreError as error:
                self._outage.endure("reap", error)
            await asyncio.sleep(BEAT_SECONDS)

    async def run_once(self) -> int:
        """Decides on what it read; what was renewed or finished meanwhile stays as it is."""
        jobs = await self._store.overdue(MOST_AT_ONCE)
        if jobs:
            now = await self._store.now()
            changes = sorted((reaped(job, now) for job in jobs), key=lambda change: change.move.trigger)
            await crew_moves.apply(self._store, changes)
            self._found()
        return len(jobs)


def reaped(job: Job, now: int) -> Change:
    """Back into the queue while attempts are left; otherwise the end its policy asks for."""
    error = f"the lease of its worker ended in attempt {job.attempts} of {job.max_attempts}"
    facts: dict[str, Any] = {"now": max(now, job.lease_until or 0), "lease_over": True, "actor": "reaper"}
    if job.attempts < job.max_attempts:
        return insist(decide(JOB, job, "expire", reason=error, **facts))
    values = {"error": error}
    if job.on_exhausted == "fail":
        return insist(decide(JOB, job, "fail", reason=error, values=values, **facts))
    detail = json.dumps({"stage": "exec", "last_lease_expires_at": job.lease_until})
    code = "exhausted_retries"
    return insist(decide(JOB, job, "dead_letter", reason=code, reason_code=code, detail=detail, values=values, **facts))
