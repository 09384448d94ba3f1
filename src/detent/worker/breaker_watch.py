"""The watch over breakers that have opened: holds back what needs them, lets one job try when they have cooled down,
and all of them go once they are closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from detent.errors import StoreError
from detent.service import held_jobs
from detent.store import Store
from detent.worker.outage import Outage

BEAT_SECONDS = 1.0
MOST_AT_ONCE = 100


class BreakerWatch:
    """Looks after them when one has moved here and when a cooldown ends, at least once in a beat, and tells when it let
    jobs go; every process may have one."""

    def __init__(self, store: Store, found: Callable[[], None], outage: Outage) -> None:
        self._store = store
        self._found = found
        self._outage = outage
        self._rung = asyncio.Event()
        self._looking = asyncio.Lock()

    def ring(self) -> None:
        """A breaker may have moved."""
        self._rung.set()

    async def run(self) -> None:
        while True:
            self._rung.clear()
            seconds = await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._rung.wait()

    async def look(self) -> float:
        """Does what is to be done; returns in how many seconds there may be more."""
        try:
            async with self._looking:
                seconds = await self.run_once()
            self._outage.over("breakers")
            return seconds
        except StoreError as error:
            self._outage.endure("breakers", error)
            return BEAT_SECONDS

    async def run_once(self) -> float:
        """A portion for each, again and again, so that none waits for all of another's jobs."""
        seconds, more = BEAT_SECONDS, True
        while more:
            more = False
            watched = await self._store.breakers_that_hold(MOST_AT_ONCE)
            now = await self._store.now() if watched else 0
            for one in watched:
                if held_jobs.is_due(one, now):
                    more |= await self._tend(one.row["tenant_id"], one.row["name"])
                elif one.holding and (ahead := held_jobs.due_at(one.row) - now) > 0:
                    seconds = min(seconds, ahead / 1_000_000)
        return seconds

    async def _tend(self, tenant_id: int, name: str) -> bool:
        tended = await held_jobs.tend(self._store, tenant_id, name)
        if tended.let_go:
            self._found()
        return tended.more
