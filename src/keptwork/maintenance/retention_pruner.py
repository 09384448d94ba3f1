"""Prune finished jobs, flows, and events from time to time. One process at a time does it for all workers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from keptwork.errors import StoreError
from keptwork.maintenance.retention import Retention, sweep
from keptwork.store import Store

DUTY = "retention"
EVERY_US = 3_600_000_000
LOOK_SECONDS = 600.0
FIRST_LOOK_SECONDS = 60.0


class Pruner:
    """Checks whether a sweep is due. Every process can have one; the database gives the duty to one at a time."""

    def __init__(self, store: Store, retention: Retention, chance: Callable[[], float]) -> None:
        self._store = store
        self._retention = retention
        self._chance = chance

    async def run(self) -> None:
        await asyncio.sleep(FIRST_LOOK_SECONDS * self._chance())
        while True:
            with contextlib.suppress(StoreError):  # unreachable: the next sweep prunes the rest
                await self.run_once()
            await asyncio.sleep(LOOK_SECONDS * (0.5 + self._chance()))

    async def run_once(self) -> bool:
        """Return whether this process had the duty and has done it."""
        ours = await self._store.take_duty(DUTY, EVERY_US)
        if ours:
            await sweep(self._store, self._retention)
        return ours
