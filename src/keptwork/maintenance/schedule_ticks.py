"""Fire due schedules. Every process does it; there is no leader."""

from __future__ import annotations

import asyncio

from keptwork.errors import StoreError
from keptwork.jobs import schedules
from keptwork.maintenance.periodic import Outage
from keptwork.store import Store

LONGEST_NAP = 1.0
SHORTEST_NAP = 0.01


class Scheduler:
    """Sleeps until the next tick, at most 1 s, because a schedule can be added or the clock can change meanwhile."""

    def __init__(self, store: Store, outage: Outage) -> None:
        self._store = store
        self._outage = outage

    async def run(self) -> None:
        while True:
            try:
                seconds = await self.run_once()
                self._outage.over("schedules")
            except StoreError as error:
                self._outage.endure("schedules", error)
                seconds = LONGEST_NAP
            await asyncio.sleep(seconds)

    async def run_once(self) -> float:
        """Fire what is due, and return the seconds until the next check.

        A tick that another process is firing, or that cannot be fired here, is checked again after `LONGEST_NAP`.
        """
        wait_us = await self._store.schedule_due()
        if wait_us is None or wait_us > 0:
            return LONGEST_NAP if wait_us is None else min(wait_us / 1_000_000, LONGEST_NAP)
        return SHORTEST_NAP if await schedules.fire(self._store) else LONGEST_NAP
