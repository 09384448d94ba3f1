"""Choose a job's handler: the newest of its kind, unless its steps started under an older version.

The handler version of a job's first checkpoint applies until the job finishes. A worker without that version releases
the job with a hold that names it, and a worker that has the version lifts the hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import Any

from keptwork.errors import StoreError
from keptwork.job import JobType
from keptwork.jobs.outcome import Release
from keptwork.store import Store
from keptwork.workers.process_exit import end_child

Older = Mapping[tuple[str, int], JobType]
"""Handlers that are no longer the newest of their kind, by name and version."""

NONE_OLDER: Older = {}
LIFT_SECONDS, SELDOM_SECONDS = 1.0, 10.0


class Handlers:
    """The handlers of one worker."""

    def __init__(self, kinds: Mapping[str, JobType], older: Older = NONE_OLDER) -> None:
        self._newest = kinds
        self._older = older

    def __iter__(self) -> Iterator[JobType]:
        yield from self._newest.values()
        yield from self._older.values()

    @property
    def names(self) -> Collection[str]:
        """The kinds of jobs that have a handler."""
        return self._newest.keys()

    def newest(self, name: str) -> JobType | None:
        """Return the handler of a job that has not started, or None."""
        return self._newest.get(name)

    def of_version(self, name: str, version: int) -> JobType | Release:
        """Return the handler for a job that started under this version, or a release that holds the job."""
        newest = self._newest[name]
        found = newest if newest.version == version else self._older.get((name, version))
        return found or held_for(name, version, [kind.version for kind in self if kind.name == name])

    @property
    def versioned(self) -> bool:
        """Whether any handler has a version."""
        return any(kind.version for kind in self)

    @property
    def holds(self) -> list[str]:
        """The holds that need not last while these handlers are here."""
        return [hold_name(kind.name, kind.version) for kind in self]


class Lifter:
    """Lifts the holds of jobs that other workers released because they lacked a handler that is here.

    A worker without versions checks too, but less often: a worker with newer handlers leaves it the jobs that started
    before there were versions.
    """

    def __init__(self, store: Store, handlers: Handlers, lifted: Callable[[], None]) -> None:
        self._store = store
        self._holds = handlers.holds
        self._pause = LIFT_SECONDS if handlers.versioned else SELDOM_SECONDS
        self._lifted = lifted

    async def run(self) -> None:
        while True:
            with contextlib.suppress(StoreError):  # unreachable: they wait a little longer
                await self.run_once()
            await asyncio.sleep(self._pause)

    async def run_once(self) -> None:
        if self._holds and await self._store.lift_holds(self._holds):
            self._lifted()


def hold_name(kind: str, version: int) -> str:
    """Return the hold for jobs that need a handler of this version.

    >>> hold_name("fetch", 2)
    'version:fetch@2'
    """
    return f"version:{kind}@{version}"


def held_for(kind: str, version: int, here: Iterable[int]) -> Release:
    """Return a release that holds the job until a worker has that version of its handler."""
    known = " and ".join(_called(one) for one in sorted(here))
    how = f"name={kind!r}, version={version}" if version else f"name={kind!r}"
    reason = f"its steps were begun under {_called(version)} of {kind!r}, and this worker has {known}; "
    return Release(f"{reason}it waits for a worker that has @app.job({how}) as well", held_by=hold_name(kind, version))


def _called(version: int) -> str:
    return f"version {version}" if version else "the handler without a version"


# Run ordinary functions on threads.
#
# A thread cannot be ended. If a handler is abandoned and continues, its thread is left alone, another thread takes its
# place, and the lost thread is counted, so that a worker with too many of them can be replaced. Lost threads delay
# neither the end of the worker nor that of the process.


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
