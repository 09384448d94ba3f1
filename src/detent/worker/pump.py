"""The pump: lets jobs go that limits hold back, when they are due or their rates allow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from detent.errors import StoreError
from detent.store import Store
from detent.worker.outage import Outage

BEAT_SECONDS = 1.0
MOST_AT_ONCE = 500


class Pump:
    """Looks when something may have become free, and tells when it let jobs go; every process may have one. Whoever
    ends a job looks after its limit in the same write, so this is only for what time brings, and what is new."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage
        self._rung = asyncio.Event()
        self._looking = asyncio.Lock()

    def ring(self) -> None:
        """There are new jobs."""
        self._rung.set()

    async def run(self) -> None:
        while True:
            self._rung.clear()
            seconds = await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, BEAT_SECONDS)):
                    await self._rung.wait()

    async def look(self) -> float:
        """Lets go what may go; returns in how many seconds the next look is due, as far as is known."""
        try:
            async with self._looking:
                seconds = await self.run_once()
            self._outage.over("pump")
            return seconds
        except StoreError as error:
            self._outage.endure("pump", error)
            return BEAT_SECONDS

    async def run_once(self) -> float:
        """While something is due, and nobody else is at it."""
        while (at := await self._store.next_pump()) is not None:
            seconds = (at - await self._store.now()) / 1_000_000
            if seconds > 0:
                return seconds
            if await self._store.pump(MOST_AT_ONCE):
                self._found()
            elif await self._store.next_pump() == at:
                return BEAT_SECONDS / 10
        return BEAT_SECONDS
