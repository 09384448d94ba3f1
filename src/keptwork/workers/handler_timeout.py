"""Enforce a handler's time-out, and detect a handler that overran it because it blocked the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

TOLERATED_SECONDS = 0.01
"""Maximum lateness of an event loop that is only busy, in seconds."""


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
    """A time limit for the current task, entered like `asyncio.timeout`.

    `cancelled` is called when the task is cancelled. `overrun` is valid once the handler has returned.
    """

    def __init__(self, seconds: float, cancelled: Callable[[], None]) -> None:
        self._seconds = seconds
        self._cancelled = cancelled
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._blocked = self._watched = False
        self.expired = False

    async def __aenter__(self) -> Deadline:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine that awaits runs in a task
        self._task, self._cancelling = task, task.cancelling()
        self._timer = self._loop.call_later(self._seconds, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._timer.cancel()
        mine = self.expired and self._task.uncancel() <= self._cancelling
        if mine and kind is asyncio.CancelledError:
            raise TimeoutError(f"it took longer than {self._seconds:g} s") from error

    def kept_by(self, handler: Awaitable[Any]) -> _Watched:
        """Return the handler, wrapped so that it is cancelled at its first await after the deadline.

        A timer alone cancels it one await later, or never.
        """
        self._watched = True
        return _Watched(handler, self._stepped)

    def _expire(self) -> None:
        self.expired = True
        self._timer.cancel()
        self._task.cancel()
        self._cancelled()

    def _stepped(self, returned: bool) -> None:
        """Check the deadline after the handler has yielded or returned."""
        if self.expired or self._loop.time() < self._began + self._seconds:
            return
        if returned:
            self._blocked = True
        else:
            self._expire()

    def overrun(self) -> Overrun | None:
        """Return by how much the handler overran its time-out, or None if it was in time."""
        took = self._loop.time() - self._began
        if took <= self._seconds + TOLERATED_SECONDS:
            return None
        return Overrun(took, self._seconds, self._because())

    def _because(self) -> str:
        if self._watched and self.expired:
            return "it ignored its cancellation"
        return "it blocked the event loop" if self._blocked else "another job blocked the event loop"


class _Watched:
    """Runs an awaitable as `await` does, and reports after each step of it whether it has returned."""

    def __init__(self, awaitable: Awaitable[Any], stepped: Callable[[bool], None]) -> None:
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
