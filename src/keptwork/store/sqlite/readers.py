"""Reads a SQLite file on threads. Reads that wait at the same time run together.

Handing a read to a thread and back takes several times as long as a short read. So while one thread reads, new reads
wait for it and then run as one batch. A read that takes longer than a short one does not delay the others, because
another thread starts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import apsw

from keptwork.store.sqlite.file import connect, explained
from keptwork.store.sqlite.session import Session

T = TypeVar("T")

READERS = 4
READER_CACHE_KB = 2048  # readers look up rows or scan all of them; neither needs more
MOST_TOGETHER = 64
SHORT_SECONDS = 0.003


class Asked(NamedTuple):
    """A read with the future of its caller."""

    work: Callable[[Session], Any]
    answer: asyncio.Future[Any]


class Outcome(NamedTuple):
    """The result or the error of a read."""

    answer: asyncio.Future[Any]
    value: Any
    error: BaseException | None


class Readers:
    """A pool of threads with a connection each. `session_on` creates the session that a batch of reads shares."""

    def __init__(self, path: str, session_on: Callable[[apsw.Connection], Session]) -> None:
        self._path = path
        self._session_on = session_on
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="keptwork-sqlite-reader")
        self._of_thread = threading.local()
        self._connections: list[apsw.Connection] = []
        self._lock = threading.Lock()
        self._waiting: list[Asked] = []
        self._busy = 0

    async def run(self, work: Callable[[Session], T]) -> T:
        """Run a read and return its result."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        with self._lock:
            self._waiting.append(Asked(work, answer))
            first, busy = len(self._waiting) == 1, self._busy
        if not busy:
            self._begin()
        elif first:  # other reads are running: they finish soon, or are not short
            loop.call_later(SHORT_SECONDS, self._begin)
        return await answer

    def close(self) -> None:
        """Let running reads finish, and close the connections."""
        self._threads.shutdown()
        for connection in self._connections:
            connection.close()

    def connection(self) -> apsw.Connection:
        """Return a new read-only connection."""
        connection = connect(self._path, create=False)
        connection.pragma("query_only", True)
        connection.pragma("cache_size", -READER_CACHE_KB)
        return connection

    def _begin(self) -> None:
        """Start another reading thread if reads wait and a thread is free."""
        with self._lock:
            if not self._waiting or self._busy >= READERS:
                return
            self._busy += 1
        try:
            self._threads.submit(self._read)
        except RuntimeError as error:  # the pool is closed
            with self._lock:
                left, self._waiting, self._busy = self._waiting, [], self._busy - 1
            _tell([Outcome(one.answer, None, error) for one in left])

    def _read(self) -> None:
        """Read on this thread until nothing waits."""
        while together := self._next():
            try:
                self._read_together(together)
            except BaseException as error:  # an error of the connection, which every caller in the batch gets
                _tell([Outcome(one.answer, None, error) for one in together])

    def _next(self) -> list[Asked]:
        with self._lock:
            taken, self._waiting = self._waiting[:MOST_TOGETHER], self._waiting[MOST_TOGETHER:]
            self._busy -= not taken
            return taken

    def _read_together(self, together: list[Asked]) -> None:
        if not hasattr(self._of_thread, "connection"):
            self._of_thread.connection = self.connection()
            self._connections.append(self._of_thread.connection)
        with explained(self._path):
            session = self._session_on(self._of_thread.connection)
        done, told = [], time.monotonic()
        for one in together:
            done.append(self._outcome(one, session))
            if time.monotonic() - told > SHORT_SECONDS:  # no caller waits for another's long read
                _tell(done)
                done, told = [], time.monotonic()
        _tell(done)

    def _outcome(self, one: Asked, session: Session) -> Outcome:
        try:
            with explained(self._path):
                return Outcome(one.answer, one.work(session), None)
        except BaseException as error:  # the caller gets any error
            return Outcome(one.answer, None, error)


def _tell(done: list[Outcome]) -> None:
    """Deliver results on each caller's event loop, usually the same one. A closed loop needs no result."""
    for loop in {one.answer.get_loop() for one in done}:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_settle, [one for one in done if one.answer.get_loop() is loop])


def _settle(done: list[Outcome]) -> None:
    for answer, value, error in done:
        if answer.done():
            continue
        if error is None:
            answer.set_result(value)
        else:
            answer.set_exception(error)
