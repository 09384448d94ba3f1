"""The pruner: now and then one process of the fleet deletes what has been over for long enough."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from keptwork.errors import StoreError
from keptwork.service.retention import Retention, sweep
from keptwork.store import Store

DUTY = "retention"
EVERY_US = 3_600_000_000
LOOK_SECONDS = 600.0
FIRST_LOOK_SECONDS = 60.0


class Pruner:
    """Asks whether a sweep is due; every process may have one, and the database lets one at a time have the duty."""

    def __init__(self, store: Store, retention: Retention, chance: Callable[[], float]) -> None:
        self._store = store
        self._retention = retention
        self._chance = chance

    async def run(self) -> None:
        await asyncio.sleep(FIRST_LOOK_SECONDS * self._chance())
        while True:
            with contextlib.suppress(StoreError):  # out of reach: what is left waits for the next sweep
                await self.run_once()
            await asyncio.sleep(LOOK_SECONDS * (0.5 + self._chance()))

    async def run_once(self) -> bool:
        """Whether the duty was ours; then it has been done."""
        ours = await self._store.take_duty(DUTY, EVERY_US)
        if ours:
            await sweep(self._store, self._retention)
        return ours
