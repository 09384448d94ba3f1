"""An event loop on a thread of its own, for ordinary code that waits for async calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 5.0


def _nothing() -> None:
    """Do nothing, when there is nothing to do at the end."""


def _settle(answer: asyncio.Future[T], task: asyncio.Task[T], error: BaseException | None) -> None:
    """Pass the outcome of a task to the loop that waits for it."""
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


class Lane:
    """A thread that runs coroutines for any other thread until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the event loop is closed."""
        return self._loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result, or raise its exception."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # cancels the coroutine if the wait was interrupted; otherwise it has finished

    async def awaited(self, coroutine: Coroutine[Any, Any, T], done: Callable[[], None] = _nothing) -> T:
        """Run a coroutine on the thread for a caller in another event loop.

        `done` is called on the thread at its end, even if the caller was cancelled meanwhile or the caller's loop is
        gone.
        """
        here = asyncio.get_running_loop()
        answer: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            done()
            error = None if task.cancelled() else task.exception()
            with contextlib.suppress(RuntimeError):  # if the loop has ended, no caller waits
                here.call_soon_threadsafe(_settle, answer, task, error)

        self._loop.call_soon_threadsafe(start)
        try:
            return await answer
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise

    def close(self) -> None:
        """Let open work finish, then end the thread."""
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._wait_for_the_end_of_the_thread()

    async def _end(self) -> None:
        await self._loop.shutdown_default_executor()

    def _wait_for_the_end_of_the_thread(self) -> None:
        """Wait until the system has removed the thread, shortly after `join` returns.

        A fork in between would copy locks that the thread still holds, such as OpenSSL's, into a child where nothing
        releases them.
        """
        task, deadline = Path(f"/proc/self/task/{self._thread.native_id}"), time.monotonic() + PATIENCE_SECONDS
        while task.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)
