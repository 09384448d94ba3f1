"""A lookout: a duty that looks when it is rung and when time has come, and tells when it found work."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable

from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.worker.outage import Outage

BEAT_SECONDS = 1.0


class Lookout(ABC):
    """Sleeps until the next look is due, at most a beat; every process may have one."""

    name: str
    """What it looks after, where it cannot."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage
        self._rung = asyncio.Event()
        self._looking = asyncio.Lock()

    def ring(self) -> None:
        """There may be something to do."""
        self._rung.set()

    async def run(self) -> None:
        while True:
            self._rung.clear()
            seconds = await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, BEAT_SECONDS)):
                    await self._rung.wait()

    async def look(self) -> float:
        """Does what is to be done; returns in how many seconds the next look is due, as far as is known."""
        try:
            async with self._looking:
                seconds = await self.run_once()
            self._outage.over(self.name)
            return seconds
        except StoreError as error:
            self._outage.endure(self.name, error)
            return BEAT_SECONDS

    @abstractmethod
    async def run_once(self) -> float:
        """The same, where the database answers."""
