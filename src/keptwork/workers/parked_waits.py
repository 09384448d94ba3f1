"""Track how one run of a handler waits under asyncio: operations in flight, parked waits, and the end of the run.

On an event loop, a wait that cannot complete yet is parked: its task awaits a future that this process never completes.
It raises nothing, so no asyncio tool mistakes it for a result. When a wait is parked and no operation is in flight, the
run ends: the handler's task and the tasks of its waits are cancelled, and what the handler then returns or raises is
discarded. An ordinary function, on a thread, gets `Suspended` raised instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Protocol

from keptwork.jobs.outcome import Raised, Release, Suspend, all_of
from keptwork.outcomes import PermanentError
from keptwork.workers.parked_waits_clocks import clock_around

TURNS = 8
"""Event loop turns that the code after an operation has to start the next operation."""

LOOK_SECONDS = 0.005
GRACE_SECONDS = 5.0
"""Seconds that a handler has to end after its run has ended."""

MOST_CANCELS = 100
"""Maximum cancellations of a task that makes durable calls although its run has ended."""

_parked_for_ever: set[asyncio.Task[Any]] = set()


class Suspended(BaseException):
    """The handler cannot continue yet. `except Exception` does not catch it; `finally` and `with` blocks run."""

    at_once = False
    """Whether the run ends here, even with operations in flight."""

    def __init__(self, suspend: Suspend | Release) -> None:
        super().__init__(suspend.reason if isinstance(suspend, Release) else f"waits for {suspend.waits_for}")
        self.suspend = suspend


class Wait(NamedTuple):
    """A wait as the handler wrote it, and how to give it a time limit of its own."""

    call: str
    limited: str


class Owner(Protocol):
    """The owner of a handler's task."""

    @property
    def work(self) -> asyncio.Task[Any] | None: ...

    def abandon(self, said: Any) -> None:
        """Complete the job with this outcome although its handler has not ended."""
        ...


class Operation:
    """A durable call in flight, or a wait that is parked in a task. A wait that raised on a thread has no task."""

    __slots__ = ("at_once", "number", "outer", "over", "suspend", "task", "wait")

    def __init__(self, number: int, wait: Wait | None, outer: Operation | None = None) -> None:
        self.number = number
        self.wait = wait
        self.outer = outer
        self.over = False
        self.task: asyncio.Task[Any] | None = None
        self.suspend: Suspend | Release | None = None
        self.at_once = False

    def note(self, suspended: Suspended) -> None:
        """Store what the operation waits for, without the frames that the exception references."""
        self.suspend, self.at_once = suspended.suspend, suspended.at_once


_last: ContextVar[Operation | None] = ContextVar("keptwork_operation", default=None)
"""The operation that this code started last.

Code runs inside that operation or, if it is finished, inside its outer one: a step that waits is not in flight.
"""


def _enclosing() -> Operation | None:
    found = _last.get()
    while found is not None and found.over:
        found = found.outer
    return found


def _around(operation: Operation) -> Iterator[Operation]:
    while (outer := operation.outer) is not None:
        yield outer
        operation = outer


class Parking:
    """The waits of one run.

    `outcome` is set once the run has ended, and replaces what the handler returns or raises.
    """

    outcome: Suspend | Release | Raised | None = None
    _loop: asyncio.AbstractEventLoop | None = None
    _grace: asyncio.TimerHandle | None = None
    _returned = False
    _cancels = _numbers = _turns = 0

    def __init__(self, owner: Owner | None) -> None:
        self._owner = owner
        self._in_flight: set[Operation] = set()
        self._parked: dict[Operation, None] = {}

    # --- on the event loop

    async def operation(self, wait: Wait | None, work: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Await a durable operation. If it suspends, it is parked and never returns."""
        operation = await self.never() if self.outcome is not None else self.begin(wait)
        try:
            return await work(*arguments)
        except Suspended as suspended:
            operation.note(suspended)
        finally:
            self.finish(operation)
        return await self.park(operation)

    def begin(self, wait: Wait | None = None) -> Operation:
        """Count an operation as in flight. Call this only in a run that has not ended."""
        operation = self._new(wait, _enclosing())
        self._in_flight.add(operation)
        _last.set(operation)
        return operation

    def finish(self, operation: Operation) -> None:
        """Count the operation as finished."""
        operation.over = True
        self._in_flight.discard(operation)
        if self._parked:
            self._look()

    def _new(self, wait: Wait | None, outer: Operation | None = None) -> Operation:
        self._numbers += 1
        return Operation(self._numbers, wait, outer)

    async def park(self, operation: Operation) -> NoReturn:
        """Park a suspended operation permanently. If the handler cancels the wait, the handler continues without it."""
        if operation.at_once and operation.suspend is not None:
            await self.die(operation.suspend)
        self._loop, operation.task = asyncio.get_running_loop(), asyncio.current_task()
        waiting = [one for one in _around(operation) if one in self._in_flight]
        self._in_flight.difference_update(waiting)
        self._parked[operation] = None
        self._look()
        try:
            await self._loop.create_future()
        finally:
            if self.outcome is None:
                self._parked.pop(operation, None)
                self._in_flight.update(waiting)
        raise AssertionError("nobody completes this future")

    async def never(self) -> NoReturn:
        """Block a durable call of an ended run. The task is cancelled again, so that `finally` blocks end."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        self._cancels += 1
        if task is not None and self._cancels <= MOST_CANCELS:
            loop.call_soon(task.cancel)
        elif task is not None:
            _parked_for_ever.add(task)  # without a reference, asyncio would report it as destroyed
        await loop.create_future()
        raise AssertionError("nobody completes this future")

    def _look(self) -> None:
        """Schedule the check whether the run should end, after the following code has had its turns."""
        scheduled, self._turns = self._turns, TURNS
        if not scheduled and self._loop is not None:
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self.outcome is not None or self._returned or not self._parked:
            self._turns = 0
        elif self._turns in (1, TURNS) and (wrong := self._clocked()) is not None:
            self.end(Raised(wrong))
        elif self._in_flight:
            self._turns = 0  # the end of that operation checks again
        else:
            self._turns -= 1
            if self._turns and self._loop is not None:
                self._loop.call_soon(self._turn)
            else:
                self.end(self._open_waits())

    def _clocked(self) -> PermanentError | None:
        for one in self._parked:
            if one.wait is None or one.task is None or not isinstance(one.suspend, Suspend):
                continue
            if (tool := clock_around(one.task)) is not None:
                return PermanentError(
                    f"{one.wait.call} cannot wait inside {tool}: the job leaves its worker while it waits, and the "
                    f"tool ends with it. {one.wait.limited}"
                )
        return None

    def _open_waits(self) -> Suspend | Release:
        """Return all waits as one. A hold comes first, because the job cannot run before it is lifted."""
        parked = sorted(self._parked, key=lambda one: one.number)
        waits = list(dict.fromkeys(one.suspend for one in parked if one.suspend is not None))
        held = next((one for one in waits if isinstance(one, Release)), None)
        return held or all_of([one for one in waits if isinstance(one, Suspend)])

    def end(self, outcome: Suspend | Release | Raised) -> None:
        """End the run with this outcome."""
        self.outcome = outcome
        work = None if self._owner is None else self._owner.work or asyncio.current_task()
        tasks = [work, *(one.task for one in self._parked)]
        for task in dict.fromkeys(tasks):
            if task is not None:
                task.cancel()
        if self._owner is not None:
            self._grace = asyncio.get_running_loop().call_later(GRACE_SECONDS, self._owner.abandon, outcome)

    async def die(self, outcome: Suspend | Release) -> NoReturn:
        """End the run where it is, as the death of the process would."""
        if self.outcome is None:
            self.end(outcome)
        await self.never()

    # --- on a thread

    @contextmanager
    def on_thread(self, wait: Wait | None = None) -> Iterator[None]:
        """Count the calls of an ordinary function, and record what it waits for even if it catches `Suspended`."""
        if isinstance(self.outcome, Suspend | Release):
            raise Suspended(self.outcome)
        operation = self._new(wait)
        self._in_flight.add(operation)
        try:
            yield
        except Suspended as suspended:
            operation.note(suspended)
            self._parked[operation] = None
            self.outcome = suspended.suspend if suspended.at_once else self.outcome
            raise
        finally:
            self._in_flight.discard(operation)
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._look)

    # --- the end of the handler

    async def returned(self, said: Any) -> Any:
        """Return what the handler returned, or an error if one of its waits is still parked."""
        self._returned = True
        for _ in range(TURNS):
            if not self.has_waits or self.outcome is not None:
                return said
            await asyncio.sleep(0)  # a cancelled wait needs a turn of the event loop to end
        beside = next((one.wait for one in self._open() if one.wait is not None), None)
        if beside is None or (self._parked and not isinstance(self._open_waits(), Suspend)):
            self.outcome = self._open_waits()
            return said
        return Raised(
            PermanentError(
                f"the handler returned while {beside.call} was still waiting. Await every wait, or cancel its task, "
                "before the handler returns."
            )
        )

    async def landed(self) -> None:
        """Wait until no operation is in flight, unless the run has already ended."""
        while self._in_flight and self.outcome is None:  # noqa: ASYNC110 - a thread can end the operation
            await asyncio.sleep(LOOK_SECONDS)

    def settled(self, said: Any) -> Any:
        """Return the outcome of the run after its handler has ended with `said`."""
        if self.outcome is None and any(one.task is None for one in self._parked):
            self.outcome = self._open_waits()
        for one in self._parked:
            if one.task is not None and not one.task.get_loop().is_closed():  # an abandoned handler outlives its loop
                one.task.cancel()
        if self._grace is not None:
            self._grace.cancel()
        return said if self.outcome is None else self.outcome

    def _open(self) -> list[Operation]:
        return [*self._parked, *(one for one in self._in_flight if one.wait is not None)]

    @property
    def has_waits(self) -> bool:
        """Whether a wait is parked or about to be parked."""
        return bool(self._parked) or any(one.wait is not None for one in self._in_flight)
