"""An event loop on a thread of its own, for ordinary code that waits for what it asks of async code."""

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
    """There is nothing to do at the end."""


def _settle(answer: asyncio.Future[T], task: asyncio.Task[T], error: BaseException | None) -> None:
    """Hand the outcome of a task to the loop that waits for it."""
    if answer.done():
        return
    if task.cancelled():
        answer.cancel()
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


class Lane:
    """A thread that runs what it is handed, from any other thread, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._loop.is_closed()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What came of it; what it raised is raised here."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()  # whoever was interrupted while waiting; else it is done already

    async def awaited(self, coroutine: Coroutine[Any, Any, T], done: Callable[[], None] = _nothing) -> T:
        """Run a coroutine on the thread for a caller in another event loop. `done` is called on the thread at its end,
        also when the caller was cancelled meanwhile or the caller's loop is gone."""
        here = asyncio.get_running_loop()
        answer: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(finish)

        def finish(task: asyncio.Task[T]) -> None:
            done()
            error = None if task.cancelled() else task.exception()
            with contextlib.suppress(RuntimeError):  # nobody waits any more where the loop has ended
                here.call_soon_threadsafe(_settle, answer, task, error)

        self._loop.call_soon_threadsafe(start)
        try:
            return await answer
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise

    def close(self) -> None:
        """Lets what is open end, and then the thread."""
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._wait_for_the_end_of_the_thread()

    async def _end(self) -> None:
        await self._loop.shutdown_default_executor()

    def _wait_for_the_end_of_the_thread(self) -> None:
        """Python's join returns a moment before the thread is gone: a fork in that moment would copy the locks that it
        still holds, OpenSSL's among them, into a child where nobody will ever release them."""
        task, deadline = Path(f"/proc/self/task/{self._thread.native_id}"), time.monotonic() + PATIENCE_SECONDS
        while task.exists() and time.monotonic() < deadline:
            time.sleep(0.0005)
