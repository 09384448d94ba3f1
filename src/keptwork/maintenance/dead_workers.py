"""Terminate workers without a heartbeat. Their jobs are left to their leases.

A missing heartbeat counts only if this process has watched it for a while: if the database was unreachable for all
workers, all of their heartbeats are old.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import WORKER
from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.workers.commands import MOST_AT_ONCE, end_silent

SHORTEST_LOOK, LONGEST_LOOK = 0.5, 5.0
LONGEST_WATCH_US = 10_000_000

log = logging.getLogger("keptwork")


class Watchman:
    """Terminates unresponsive workers. Every worker and supervisor has one; a worker does not judge itself."""

    def __init__(
        self,
        store: Store,
        silent_us: int,
        actor: str,
        itself: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._silent_us = silent_us
        self._actor = actor
        self._itself = itself
        self._monotonic = monotonic
        self._watched: dict[int, tuple[int, float]] = {}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(min(max(self._silent_us / 8_000_000, SHORTEST_LOOK), LONGEST_LOOK))
            try:
                await self.run_once()
            except StoreError:
                self._watched.clear()  # unreachable for this process, and perhaps for the others too

    async def run_once(self) -> list[int]:
        """Return the workers that were terminated."""
        judged = await self._silent()
        ended = await end_silent(self._store, self._silent_us, judged, self._actor) if judged else []
        for id in ended:
            seconds = self._silent_us / 1_000_000
            log.warning("%s was not heard of for %g s and is terminated", public_id(WORKER.name, id), seconds)
        return ended

    async def _silent(self) -> set[int]:
        now, at = await self._store.now(), self._monotonic()
        alive = await self._store.workers(WorkerFilter(states=ALIVE), limit=MOST_AT_ONCE)
        heard = {row["id"]: row["seen_at"] for row in alive if row["seen_at"] is not None and row["id"] != self._itself}
        self._watched = {id: self._since(id, seen_at, at) for id, seen_at in heard.items()}
        long_enough = min(self._silent_us, LONGEST_WATCH_US) / 1_000_000
        return {
            id
            for id, (seen_at, since) in self._watched.items()
            if now - seen_at >= self._silent_us and at - since >= long_enough
        }

    def _since(self, id: int, seen_at: int, at: float) -> tuple[int, float]:
        """Return the worker's last heartbeat and since when this process has watched it unchanged."""
        before = self._watched.get(id)
        return before if before is not None and before[0] == seen_at else (seen_at, at)
