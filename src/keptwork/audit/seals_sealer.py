"""Seal new events of the event log: every minute in one process for all, and in each process when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from keptwork.audit.seals import may_follow, seal
from keptwork.errors import StoreError
from keptwork.store import EventFilter, Store

DUTY = "seal"
EVERY_US = 60_000_000
LOOK_SECONDS = 60.0
RESTS = 9  # multiple of the time of a batch: at most a tenth of one core, however fast the log grows
SHORTEST_REST = 0.01
LAST_SECONDS = 2.0

logger = logging.getLogger("keptwork")


class Sealer:
    """Checks whether there are events to seal. Every process can have one; the database gives the duty to one at a
    time.

    Without new events, nothing is written.
    """

    def __init__(self, store: Store, chance: Callable[[], float]) -> None:
        self._store = store
        self._chance = chance
        self._began = 0.0

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS * (0.5 + self._chance()))
            with contextlib.suppress(StoreError):  # unreachable: the next check seals the rest
                await self.run_once()

    async def run_once(self) -> int:
        """Return how many events were sealed, 0 if another process has the duty."""
        last = await self._store.last_seal()
        if not may_follow(last):
            return 0  # a process that has the secret does it
        if not await self._store.events(EventFilter(), after=None if last is None else last.upto, limit=1):
            return 0
        if not await self._store.take_duty(DUTY, EVERY_US // 2):
            return 0
        self._began = time.monotonic()
        return await seal(self._store, rest=self._rest)

    async def run_last(self) -> None:
        """Seal once more when the process ends, whichever process has the duty, because it can be the last one for a
        long time. What fails or takes too long is left to the next process and does not delay this one."""
        try:
            async with asyncio.timeout(LAST_SECONDS):
                if may_follow(await self._store.last_seal()):
                    await seal(self._store)
        except (StoreError, TimeoutError):
            logger.debug("the newest events are not sealed yet; the next process seals them")
        except Exception as error:
            logger.warning("the newest events could not be sealed: %s; the next process tries again", error)

    async def _rest(self) -> None:
        await asyncio.sleep(max(RESTS * (time.monotonic() - self._began), SHORTEST_REST))
        self._began = time.monotonic()
