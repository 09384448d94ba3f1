"""Let claims wait for jobs. Equal claims wait in one line, and a notification wakes only the first of each line.

A claim that is woken checks for due jobs and wakes the next claim if there were some. A new job therefore costs one or
two claims, however many wait. Once per second the first claim of each line checks anyway, for jobs that time has made
due and for lost notifications. The workers of all waiting claims are then checked together: a paused worker is skipped,
and a worker that must end leaves immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager

from keptwork.core.lifecycles import WORKER
from keptwork.errors import StoreError
from keptwork.store import Store
from keptwork.store.contract.records import Standing
from keptwork.workers.commands_enrolment import may_claim
from keptwork.workers.registration_orders import understood

LOOK_SECONDS = 1.0
AT_ONCE = 500

Line = tuple[Hashable, ...]
"""The claim parameters that are equal in one line."""


class Place:
    """One waiting claim."""

    def __init__(self, line: Line, worker: int) -> None:
        self.line = line
        self.worker = worker
        self.aside = False
        self.over = False
        self.called = False
        self._news = asyncio.Event()

    def call(self) -> None:
        """Wake the claim, because jobs might be due."""
        self.called = True
        self._news.set()

    def leave(self) -> None:
        """End the wait: the caller has gone, or the server or the worker is about to end."""
        self.over = True
        self._news.set()

    async def is_called(self, until: float) -> bool:
        """Return whether to check for jobs again, rather than to leave. `until` is a time of the event loop."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._news.wait()
        self._news.clear()
        called, self.called = self.called, False
        return called and not self.over


class WaitingRoom:
    """The waiting claims of a server. It has a task only while a claim waits."""

    def __init__(self, store: Store, closing: asyncio.Event, look_seconds: float = LOOK_SECONDS) -> None:
        self._store = store
        self._closing = closing
        self._look_seconds = look_seconds
        self._lines: dict[Line, dict[Place, None]] = {}
        self._warden: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    @asynccontextmanager
    async def place(self, line: Line, worker: int) -> AsyncIterator[Place]:
        """Yield a place at the end of a line. A place that leaves with an unused wakeup passes it on."""
        place = Place(line, worker)
        self._lines.setdefault(line, {})[place] = None
        if self._closing.is_set():
            place.leave()
        elif self._warden is None or self._warden.done():
            self._warden = asyncio.create_task(self._watch())
        try:
            yield place
        finally:
            self._lines[line].pop(place)
            if not self._lines[line]:
                del self._lines[line]
            if place.called:
                self.call_next(line)

    def call_next(self, line: Line) -> None:
        """Wake the first claim of a line that is not skipped."""
        first = next((place for place in self._lines.get(line, ()) if not place.aside), None)
        if first is not None:
            first.call()

    def _ring(self) -> None:
        for line in list(self._lines):
            self.call_next(line)

    async def _watch(self) -> None:
        """Watch while claims wait and the server is not closing."""
        stop_listening = self._store.listen(self._ring)
        try:
            while self._lines and not self._closing.is_set():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_seconds):
                        await self._closing.wait()
                # unreachable: they continue to wait, and their own checks report it
                with contextlib.suppress(StoreError):
                    await self._ask_about()
                self._ring()
        finally:
            stop_listening()
        for place in self._everyone():
            place.leave()

    async def _ask_about(self) -> None:
        workers = list(dict.fromkeys(place.worker for place in self._everyone()))
        standing: dict[int, Standing] = {}
        for start in range(0, len(workers), AT_ONCE):
            rows = await self._store.rows(WORKER, workers[start : start + AT_ONCE], ("id", *Standing._fields))
            standing |= {row.pop("id"): Standing(**row) for row in rows}
        for place in self._everyone():
            if place.worker not in workers:
                continue  # it arrived meanwhile
            found = standing.get(place.worker)
            place.aside = found is not None and not may_claim(found.state)
            if understood(found) is not None:
                place.leave()

    def _everyone(self) -> Iterator[Place]:
        return iter([place for line in self._lines.values() for place in line])

    async def close(self) -> None:
        """End all waits."""
        if self._warden is not None:
            self._warden.cancel()
            await asyncio.wait([self._warden])
