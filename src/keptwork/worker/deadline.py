"""The time-out of a handler: what happens at its end, and after it where the handler has blocked the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from dataclasses import dataclass
from typing import Any

TOLERATED_SECONDS = 0.01
"""A loop that is merely busy answers this late."""


@dataclass(frozen=True, slots=True)
class Overrun:
    """A handler returned after its time-out. Its result stands, because another attempt would repeat what it did."""

    seconds: float
    timeout: float
    because: str

    @property
    def text(self) -> str:
        return f"took {self.seconds:.3g} s, over its timeout of {self.timeout:g} s: {self.because}"


class Deadline:
    """Enter it where the handler starts. `overrun` is known once it has returned."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._blocked = self._watched = False
        self.timeout = asyncio.timeout(seconds)

    def kept_by(self, handler: Awaitable[Any]) -> _Watched:
        """Return the handler such that it is cancelled at its first await after the deadline. asyncio alone cancels it
        one await later, or never."""
        self._watched = True
        return _Watched(handler, self._stepped)

    def _stepped(self, returned: bool) -> None:
        """The handler has given up control, or returned."""
        over = not self.timeout.expired() and self._loop.time() >= self._began + self._seconds
        if over and returned:
            self._blocked = True
        elif over:
            self.timeout.reschedule(self._loop.time())

    def overrun(self) -> Overrun | None:
        """Return by how much the handler was late, or None if it was in time."""
        took = self._loop.time() - self._began
        if took <= self._seconds + TOLERATED_SECONDS:
            return None
        return Overrun(took, self._seconds, self._because())

    def _because(self) -> str:
        if self._watched and self.timeout.expired():
            return "it ignored its cancellation"
        return "it blocked the event loop" if self._blocked else "another job blocked the event loop"


class _Watched:
    """Runs an awaitable as `await` does, and reports after each step of it whether it has returned."""

    def __init__(self, awaitable: Awaitable[Any], stepped: Any) -> None:
        self._awaitable = awaitable
        self._stepped = stepped

    def __await__(self) -> Generator[Any, Any, Any]:
        running: Any = self._awaitable.__await__()
        step, sent = running.send, None
        while True:
            try:
                waits_for = step(sent)
            except StopIteration as returned:
                self._stepped(True)
                return returned.value
            self._stepped(False)
            try:
                sent, step = (yield waits_for), running.send
            except GeneratorExit:
                running.close()
                raise
            except BaseException as error:
                sent, step = error, running.throw
