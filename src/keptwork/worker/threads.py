"""Threads for ordinary functions.

A thread cannot be ended. One whose handler was given up but goes on anyway is left to itself: another takes its place,
and it is counted, so that a worker that has too many of them can be replaced. They hold up neither the end of the
worker nor that of the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from keptwork.worker.forks import end_child

STUCK_SECONDS = 5.0

_Call = tuple["Future[Any]", Context, Callable[..., Any], tuple[Any, ...]]


class NoThread(Exception):
    """The process has no room for another thread."""


class Threads:
    """As many as there are calls at a time; each is used again."""

    def __init__(self, stuck: Callable[[], None]) -> None:
        self._report = stuck
        self._process = os.getpid()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._made = 0
        self._stuck: set[Future[Any]] = set()

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns; it must not raise. Cancelled, the function goes on until it ends by itself; if it
        had returned before, and only the event loop had no time to hear of it, what it returned counts. The context
        variables are those of its caller: what it logs belongs to the same job."""
        future: Future[Any] = Future()
        self._submit((future, copy_context(), function, arguments))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                return future.result()
            asyncio.get_running_loop().call_later(STUCK_SECONDS, self._judge, future)
            raise

    @property
    def stuck(self) -> int:
        """Threads that are lost to handlers which do not end."""
        return len(self._stuck)

    def stop(self) -> None:
        """Each ends when its function does."""
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
            future, context, function, arguments = call
            if future.set_running_or_notify_cancel():
                said = context.run(function, *arguments)
                context.run(end_child, self._process)
                self._be_idle()  # before the next call can come: it must find this thread
                future.set_result(said)
                del said
            else:
                self._be_idle()
            del call, future, context, function, arguments  # an idle thread holds on to nothing

    def _be_idle(self) -> None:
        with self._lock:
            self._idle += 1

    def _judge(self, future: Future[Any]) -> None:
        if not future.done():
            self._stuck.add(future)
            future.add_done_callback(self._stuck.discard)
            self._report()
