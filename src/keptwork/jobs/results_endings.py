"""Wait for jobs to finish, with one query for all waiting callers and a growing interval."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence

from keptwork.core.lifecycles import JOB, Change, Lifecycle
from keptwork.store import Reader

SHORTEST_LOOK, LONGEST_LOOK = 0.005, 0.1

WorksOn = Callable[[int, int], bool]
"""Receives a tenant and a job."""


class Endings:
    """The callers that wait for jobs of one database, or for entities of another kind."""

    def __init__(self, store: Reader, lifecycle: Lifecycle = JOB) -> None:
        self._store = store
        self._lifecycle = lifecycle
        self._waiting: dict[int, list[asyncio.Future[Change | None]]] = {}
        self._joined = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._heard: list[Callable[[], None]] = []
        self.workers_here: list[WorksOn] = []
        """Workers of this process, which report what they settle.

        Each callable returns whether its worker works on a job.
        """

    async def reached(self, key: int) -> Change | None:
        """Wait until the job has finished or was deleted. Return its last move if this process made it."""
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
        """Return the last move of a job that a worker in this process works on.

        Return None if no worker does, or none does any more, or on timeout. It does not query the database.
        """
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
        """Report changes that a worker in this process has written to the callers that wait.

        They need no query then.
        """
        for heard in self._heard:
            heard()
        if self._waiting:
            for change in changes:
                if change.id in self._waiting and change.move.target.final:
                    self._tell([change.id], change)

    def on_settled(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Call `heard` whenever a worker in this process has written changes. Return a function that ends this."""
        self._heard.append(heard)
        return lambda: self._heard.remove(heard)

    def _leave(self, key: int, told: asyncio.Future[Change | None]) -> None:
        self._waiting[key].remove(told)
        if not self._waiting[key]:
            del self._waiting[key]
        if not self._waiting and self._watch is not None:
            self._watch.cancel()
            self._watch = None  # the next caller needs a new task, even before this one has ended

    async def _look_around(self) -> None:
        look = SHORTEST_LOOK
        try:
            while self._waiting:
                look = SHORTEST_LOOK if await self._somebody_joins(look) else min(look * 2, LONGEST_LOOK)
                self._tell(await self._ended(list(self._waiting)))
        except Exception as error:  # every waiting caller must receive the error
            self._tell(self._waiting, error=error)

    async def _somebody_joins(self, seconds: float) -> bool:
        """Wait, and return whether a caller has joined. A new caller makes the next query early."""
        joined = self._joined.is_set()
        self._joined.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._joined.wait()
        return joined

    async def _ended(self, keys: list[int]) -> set[int]:
        """Read only the states, because rows can contain megabytes."""
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
