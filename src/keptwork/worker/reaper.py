"""The reaper: gives back what dead workers held, once its lease is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keptwork.errors import StoreError
from keptwork.service import settle
from keptwork.service.leases import reaped
from keptwork.store import Store
from keptwork.worker.outage import Outage

__all__ = ["Reaper", "reaped"]

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
            await settle.applied(self._store, changes)
            self._found()
        return len(jobs)
