"""Waiting for jobs to end: one question to the database for all who wait, asked more and more rarely."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from keptwork.lifecycle import JOB, Change, Lifecycle
from keptwork.store import Reader

SHORTEST_LOOK, LONGEST_LOOK = 0.005, 0.1

WorksOn = Callable[[int, int], bool]
"""Of a tenant and a job."""


class Endings:
    """Those who wait for jobs of one database, or for entities of another kind."""

    def __init__(self, store: Reader, lifecycle: Lifecycle = JOB) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._waiting: dict[int, list[asyncio.Future[Change | None]]] = {}
        self._joined = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._heard: list[Callable[[], None]] = []
        self.workers_here: list[WorksOn] = []
        """Those of this process, who tell of what they settle; asked for a job, each says whether it works on it."""

    async def reached(self, key: int) -> Change | None:
        """Returns when the job has ended, or is no longer there; with its last move, if that was made here."""
        told: asyncio.Future[Change | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(told)
        self._joined.set()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look_around())
        try:
            return await told
        finally:
            self._leave(key, told)

    async def heard_of(self, tenant_id: int, key: int, at_most: float | None) -> Change | None:
        """The last move of a job that a worker in this process works on; none if none does, or not for a moment, or the
        time is over. Nothing is asked of the database."""
        told: asyncio.Future[Change | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(told)
        look, left = SHORTEST_LOOK, float("inf") if at_most is None else at_most
        try:
            while not (await asyncio.wait((told,), timeout=min(look, left)))[0]:
                left -= look
                if left <= 0 or not any(works_on(tenant_id, key) for works_on in self.workers_here):
                    return None
                look = min(look * 2, LONGEST_LOOK)
            return told.result()
        finally:
            self._leave(key, told)

    def reached_by(self, changes: Sequence[Change]) -> None:
        """A worker in this process has written these: who waits for one of them need not look for it."""
        for heard in self._heard:
            heard()
        if self._waiting:
            for change in changes:
                if change.id in self._waiting and change.move.target.final:
                    self._tell([change.id], change)

    def on_settled(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever a worker in this process has written something; returns how to stop."""
        self._heard.append(heard)
        return lambda: self._heard.remove(heard)

    def _leave(self, key: int, told: asyncio.Future[Change | None]) -> None:
        self._waiting[key].remove(told)
        if not self._waiting[key]:
            del self._waiting[key]
        if not self._waiting and self._watch is not None:
            self._watch.cancel()
            self._watch = None  # whoever comes next, even before it has ended, needs another

    async def _look_around(self) -> None:
        look = SHORTEST_LOOK
        try:
            while self._waiting:
                look = SHORTEST_LOOK if await self._somebody_joins(look) else min(look * 2, LONGEST_LOOK)
                self._tell(await self._ended(list(self._waiting)))
        except Exception as error:  # whatever it was, everyone who waits must hear of it
            self._tell(self._waiting, error=error)

    async def _somebody_joins(self, seconds: float) -> bool:
        """Whether somebody has, by then: who has just come wants to know soon."""
        joined = self._joined.is_set()
        self._joined.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._joined.wait()
        return joined

    async def _ended(self, keys: list[int]) -> set[int]:
        """Asks for the state only: the rows may hold megabytes."""
        rows = await self._store.rows(self._lifecycle, keys, ("id", "state"))
        return set(keys) - {row["id"] for row in rows if not self._lifecycle.state(row["state"]).final}

    def _tell(self, keys: Iterable[int], change: Change | None = None, error: Exception | None = None) -> None:
        for told in [told for key in keys for told in self._waiting.get(key, ())]:
            if told.done():
                continue
            if error is None:
                told.set_result(change)
            else:
                told.set_exception(error)
