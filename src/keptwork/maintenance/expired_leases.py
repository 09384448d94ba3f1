"""Reclaim the jobs of dead workers after their leases expire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keptwork.errors import StoreError
from keptwork.jobs import complete
from keptwork.jobs.outcome import reaped
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store

__all__ = ["Reaper", "reaped"]

BEAT_SECONDS = 1.0
MOST_AT_ONCE = 500


class Reaper:
    """Finds expired leases and calls `found`; every process can have one."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage

    async def run(self) -> None:
        """Reclaim from the first moment: if workers die within less than a beat, each still reclaims once."""
        while True:
            try:
                while await self.run_once() == MOST_AT_ONCE:
                    continue
                self._outage.over("reap")
            except StoreError as error:
                self._outage.endure("reap", error)
            await asyncio.sleep(BEAT_SECONDS)

    async def run_once(self) -> int:
        """Reclaim what one read found. Jobs that were renewed or completed meanwhile stay unchanged. Return the number
        found."""
        jobs = await self._store.overdue(MOST_AT_ONCE)
        if jobs:
            now = await self._store.now()
            changes = sorted((reaped(job, now) for job in jobs), key=lambda change: change.move.trigger)
            await complete.applied(self._store, changes)
            self._found()
        return len(jobs)
