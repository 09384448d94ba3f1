"""Run ordinary functions on threads.

A thread cannot be ended. If a handler is abandoned and continues, its thread is left alone, another thread takes its
place, and the lost thread is counted, so that a worker with too many of them can be replaced. Lost threads delay
neither the end of the worker nor that of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from keptwork.workers.process_exit_forks import end_child

STUCK_SECONDS = 5.0


class _Call:
    """A function call for a thread. A `concurrent.futures.Future` would need forty objects for each call."""

    __slots__ = ("arguments", "context", "done", "function", "given_up", "loop", "said", "told")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.context: Context = copy_context()
        self.loop = asyncio.get_running_loop()
        self.told: asyncio.Future[None] = self.loop.create_future()
        self.said: Any = None
        self.done = self.given_up = False

    def tell(self) -> None:
        """Report, on the thread, that the function has returned or is no longer wanted."""
        self.done = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(_wake, self.told)


def _wake(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


class NoThread(Exception):
    """The process cannot start another thread."""


class Threads:
    """As many threads as there are concurrent calls. Threads are reused."""

    def __init__(self, stuck: Callable[[], None]) -> None:
        self._report = stuck
        self._process = os.getpid()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._made = 0
        self._stuck: set[_Call] = set()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on a thread and return its result; the function must not raise. If the caller is cancelled,
        the function continues until it ends. If the function had already returned, and only the event loop had not yet
        noticed, its result counts. The function runs with the caller's context variables, so its log records belong to
        the same job."""
        call = _Call(function, arguments)
        self._submit(call)
        try:
            await call.told
        except asyncio.CancelledError:
            with self._lock:
                call.given_up = not call.done
            if call.given_up:
                call.loop.call_later(STUCK_SECONDS, self._judge, call)
                raise
        return call.said

    @property
    def stuck(self) -> int:
        """The number of threads lost to handlers that do not end."""
        return len(self._stuck)

    def stop(self) -> None:
        """End each thread when its function ends."""
        for _ in range(self._made):
            self._calls.put(None)

    def _submit(self, call: _Call) -> None:
        with self._lock:
            self._idle -= 1
            missing = self._idle < 0
            if missing:
                self._idle, self._made = 0, self._made + 1
        if missing:
            self._start()
        self._calls.put(call)

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name=f"keptwork-handler-{self._made}", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._made -= 1
            raise NoThread(f"cannot start a thread: {error}") from None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            with self._lock:
                wanted = not call.given_up
            if wanted:
                call.said = call.context.run(call.function, *call.arguments)
                call.context.run(end_child, self._process)
            self._be_idle()  # before the next call can arrive, because it must find this thread
            call.tell()
            self._stuck.discard(call)
            del call  # an idle thread must not retain the call

    def _be_idle(self) -> None:
        with self._lock:
            self._idle += 1

    def _judge(self, call: _Call) -> None:
        self._stuck.add(call)
        if call.done:  # the thread sets `done` before it discards the call
            self._stuck.discard(call)
        else:
            self._report()
