"""Handle expired leases and the leases of dead workers."""

from __future__ import annotations

import json
from typing import Any

from keptwork.core.lifecycles import JOB, Change, decide, insist
from keptwork.core.lifecycles.job import ASSIGNED, RUNNING
from keptwork.jobs import complete
from keptwork.store import Job, JobFilter, Store

MOST_AT_ONCE = 10_000


LEASE_ENDED = "the lease of its worker ended"


async def reclaim(store: Store, worker: int, why: str) -> int:
    """Reclaim the jobs of a worker whose process no longer exists.

    Return how many there were. Their leases end now, with the usual rules for expired leases.
    """
    wanted = JobFilter(states=(ASSIGNED.name, RUNNING.name), owner=worker)
    tokens = [
        (row["id"], row["epoch"]) for row in await store.jobs(wanted, limit=MOST_AT_ONCE, columns=("id", "epoch"))
    ]
    if tokens:
        await store.renew(worker, tokens, 0)
        now = await store.now()
        found = [job for job in await store.overdue(MOST_AT_ONCE) if job.owner == worker]
        changes = sorted((reaped(job, now, why) for job in found), key=lambda change: change.move.trigger)
        await complete.applied(store, changes)
    return len(tokens)


def reaped(job: Job, now: int, why: str = LEASE_ENDED) -> Change:
    """Return a job to the queue while it has attempts left. Otherwise end it as its policy requires."""
    error = f"{why} in attempt {job.attempts} of {job.max_attempts}"
    facts: dict[str, Any] = {"now": max(now, job.lease_until or 0), "lease_over": True, "actor": "reaper"}
    if job.attempts < job.max_attempts:
        return insist(decide(JOB, job, "expire", reason=error, **facts))
    values = {"error": error}
    if job.on_exhausted == "fail":
        return insist(decide(JOB, job, "fail", reason=error, values=values, **facts))
    detail = json.dumps({"stage": "exec", "last_lease_expires_at": job.lease_until})
    code = "exhausted_retries"
    return insist(decide(JOB, job, "dead_letter", reason=code, reason_code=code, detail=detail, values=values, **facts))
