"""Base class of maintenance tasks that check when notified or when a check is due, and report work that they find."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable

from keptwork.errors import StoreError
from keptwork.maintenance.periodic_outage import Outage
from keptwork.store import Store

BEAT_SECONDS = 1.0


class Lookout(ABC):
    """Sleeps until the next check is due, at most `BEAT_SECONDS`; every process can have one."""

    name: str
    """The name of the task in reports of an outage."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage
        self._rung = asyncio.Event()
        self._looking = asyncio.Lock()

    def ring(self) -> None:
        """Check soon, because there might be work."""
        self._rung.set()

    async def run(self) -> None:
        while True:
            self._rung.clear()
            seconds = await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, BEAT_SECONDS)):
                    await self._rung.wait()

    async def look(self) -> float:
        """Do the work that is due, and return the seconds until the next check, as far as known."""
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
        """Do the work that is due; an unreachable database raises `StoreError`."""
