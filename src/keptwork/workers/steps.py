"""The durable steps of one run of a handler: completed steps are not repeated, and waits occupy no worker.

The result of a step is stored before the handler receives it. When the job runs again, after a crash, a retry, or a
wait, the handler runs from its beginning, and each completed step returns its stored result. A wait is parked
(parked_waits.py): the job goes back into the queue, and its slot is free.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from types import CodeType
from typing import Any, NoReturn

from keptwork.core.durations import Span, span_us
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import check_name
from keptwork.errors import BadInput, LeaseLost
from keptwork.jobs.outcome import LARGEST_IN_ROW, Raised, Release, Suspend, result_text
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.store import Blob, Job
from keptwork.store.contract.checkpoints import OWN, Checkpoint, Save
from keptwork.workers.checkpoint_writer import Journals, report
from keptwork.workers.handlers import held_for
from keptwork.workers.parked_waits import Owner, Parking, Suspended, Wait

# Compute a digest of a function's code, to detect that the code has changed since it made a result.


_PYTHON = f"{sys.implementation.cache_tag}:"


def step_code(function: Callable[..., Any]) -> str | None:
    """Return a short digest of the function's code, or None if it is not written in Python.

    >>> step_code(len) is None
    True
    >>> step_code(lambda: 1) == step_code(lambda: 1)
    True
    >>> step_code(lambda: 1) == step_code(lambda: 2)
    False
    """
    while isinstance(function, partial):
        function = function.func
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _digest(code) if isinstance(code, CodeType) else None


def same_code(one: str | None, other: str | None) -> bool:
    """Return whether the digests do not differ. Digests from different versions of Python are not compared."""
    if one is None or other is None or one.partition(":")[0] != other.partition(":")[0]:
        return True
    return one == other


@lru_cache(maxsize=10_000)
def _digest(code: CodeType) -> str:
    return _PYTHON + hashlib.sha256(_code_text(code).encode()).hexdigest()[:16]


def _code_text(code: CodeType) -> str:
    """Return the code without line numbers and file names, which edits to other lines change."""
    constants = [_code_text(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return repr((code.co_code, constants, code.co_names, code.co_varnames))


def said_by(error: BaseException) -> Any:
    """Return the outcome of a handler that ended with this exception.

    If a group has no other errors, the wait of one of its members is the outcome.
    """
    if isinstance(error, BaseExceptionGroup):
        waiting, others = error.split(Suspended)
        if waiting is None or others is not None:
            return Raised(others or error)
        return said_by(waiting.exceptions[0])
    return error.suspend if isinstance(error, Suspended) else Raised(error)


class Steps:
    """The steps of one run. An ordinary function gets results, an async function gets awaitables."""

    __slots__ = ("_counts", "_job", "_journal", "_over", "_owner", "_parking", "_recalled", "_taken", "version")

    def __init__(self, job: Job, journal: Journals, version: int = 0, owner: Owner | None = None) -> None:
        self._job = job
        self._journal = journal
        self.version = version
        self._owner = owner
        self._parking: Parking | None = None
        self._over = False
        self._taken: set[str] = set()
        self._counts: dict[str, int] = {}
        self._recalled: dict[str, Checkpoint] | None = None if job.epoch else {}

    def step(self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the stored result of the step, or call the function and store its result."""
        self.insist_open(name)
        self._take(name)
        if self._journal.awaited:
            return self._step(name, function, args, kwargs)
        with self.parking.on_thread():
            return self._step_on_thread(name, function, args, kwargs)

    def _step_on_thread(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        found = self._journal.wait(self.recall(name))
        if found is not None:
            return self._journal.wait(self._stored(found, function))
        with spans.step(name):
            value = function(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = self._journal.wait(value)
            return self._journal.wait(self.keep(name, value, step_code(function)))

    async def _step(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a step as `parking.operation` would, without another coroutine."""
        parking = self.parking
        operation = await parking.never() if parking.outcome is not None else parking.begin()
        try:
            found = None if self._recalled == {} else await self.recall(name)
            if found is not None:
                return await self._stored(found, function)
            with spans.step(name):
                if inspect.iscoroutinefunction(function):
                    value = await function(*args, **kwargs)
                else:
                    value = await self.in_thread(partial(function, *args, **kwargs))
                    value = await value if inspect.isawaitable(value) else value
                return await self.keep(name, value, step_code(function))
        except Suspended as suspended:
            operation.note(suspended)
        finally:
            parking.finish(operation)
        return await parking.park(operation)

    def in_thread(self, function: Callable[[], Any]) -> Awaitable[Any]:
        """Call an ordinary function without blocking the event loop."""
        return self._journal.in_thread(function)

    def sleep(self, span: Span, name: str | None = None) -> Any:
        """Wait until the time has passed, however often the job runs until then."""
        wait = Wait(f"ctx.sleep({span!r})", "Sleep for the time that you want to wait at most.")
        return self.waiting(wait, self._sleep, self.own_name("sleep", name), span_us(span))

    async def _sleep(self, name: str, length_us: int) -> None:
        found = await self.recall(name)
        now = await self._journal.now()
        until = json.loads(found.result) if found else await self.keep(name, now + length_us)
        if until > now:
            raise Suspended(Suspend("sleep", until))

    def progress(self, fraction: float, text: str) -> None:
        """Report the handler's progress for display."""
        self._journal.tell(self._job, report(fraction, text))

    # --- for all waits

    @property
    def parking(self) -> Parking:
        """The parked waits of this run. A handler without durable calls never creates it."""
        if self._parking is None:
            self._parking = Parking(self._owner)
        return self._parking

    def waiting(self, wait: Wait | None, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return an awaitable on the event loop. On a thread, do the work and return its result."""
        if self._journal.awaited:
            return self.parking.operation(wait, work, *arguments)
        with self.parking.on_thread(wait):
            return self._journal.wait(work(*arguments))

    def keeping(self, keep: Callable[..., Awaitable[Any]], *arguments: Any) -> Awaitable[Any]:
        """Count the storing of an artifact as an operation in flight."""
        if self._journal.awaited:
            return self.parking.operation(None, keep, *arguments)
        with self.parking.on_thread():
            return keep(*arguments)

    async def suspend(self, suspend: Suspend | Release) -> NoReturn:
        """End the run as suspended, from code on the event loop."""
        await self.parking.operation(None, _raising, suspend)
        raise AssertionError("a suspended run never returns")

    @property
    def has_waits(self) -> bool:
        """Whether a wait of this run is parked or about to be parked."""
        return self._parking is not None and self._parking.has_waits

    def settled(self, said: Any) -> Any:
        """Return the outcome of the run after its handler has ended with `said`."""
        return said if self._parking is None else self._parking.settled(said)

    def close(self) -> None:
        """Refuse durable calls from here on: the job has ended, or another run has it."""
        self._over = True

    def own_name(self, what: str, name: str | None) -> str:
        """Return the checkpoint name of a wait: the user's name, or its number among waits of its kind."""
        self.insist_open(what)
        self._counts[what] = self._counts.get(what, 0) + 1
        if name is not None:
            _check_name(name)
        own = f"{OWN}{what} {name or self._counts[what]}"
        self._take(own, ours=True)
        return own

    def insist_open(self, what: str) -> None:
        """Refuse a durable call that a leftover task of the handler makes after the end of the job.

        In a suspended run, such a call is parked instead.
        """
        if self._over and (self._parking is None or self._parking.outcome is None):
            raise LeaseLost(lifecycle=JOB.name, id=self._job.public_id, trigger=what)

    async def recall(self, name: str) -> Checkpoint | None:
        """Return the checkpoint that an earlier run stored under a name, or None. A large result is fetched."""
        kept = self._recalled if self._recalled is not None else await self.before()
        if not kept:
            return None
        begun = await self.begun_as()
        if begun is not None and begun != self.version:
            raise Suspended(held_for(self._job.kind, begun, (self.version,)))
        found = kept.get(name)
        if found is None or found.hash is None:
            return found
        return found._replace(result=await self._journal.whole(self._job, found))

    async def before(self) -> dict[str, Checkpoint]:
        """Return the checkpoints of earlier runs by name. A large result is only a reference to its blob."""
        if self._recalled is None:
            self._recalled = {one.name: one for one in await self._journal.recall(self._job)}
        return self._recalled

    async def begun_as(self) -> int | None:
        """Return the handler version of the job's first checkpoint, or None if there is no checkpoint yet."""
        return next((one.version for one in (await self.before()).values()), None)

    def save(self, name: str, text: str) -> Save:
        """Return a checkpoint that the caller writes together with other changes."""
        return Save(self._job, name, text, version=self.version)

    def save_whole(self, name: str, text: str, code: str | None = None) -> Save:
        """Return a checkpoint for a text of any length. A large text becomes a blob."""
        blob = Blob.of(text.encode()) if len(text) > LARGEST_IN_ROW else None
        return Save(self._job, name, blob.note if blob else text, blob, code, self.version)

    async def keep(self, name: str, value: Any, code: str | None = None) -> Any:
        """Store a value, and return it as the next run will see it."""
        return json.loads(await self.keep_text(name, _text(name, value), code))

    async def kept_once(self, name: str, number: int) -> int:
        """Return the number that was stored under this name before this run, or store this one."""
        found = await self.recall(name)
        return int(json.loads(found.result) if found else await self.keep(name, number))

    async def keep_text(self, name: str, text: str, code: str | None = None) -> str:
        """Store a value given as JSON, and return the stored JSON. A value that another run has stored meanwhile
        remains."""
        save = self.save_whole(name, text, code)
        if await self._journal.save(save) == save.result:
            return text
        self._recalled = None
        return await self.whole(name)

    async def _stored(self, found: Checkpoint, function: Callable[..., Any]) -> Any:
        if found.changed_at is None and not same_code(found.code, step_code(function)):
            await self._journal.note_change(self._job, found.name)
        return json.loads(found.result)

    # --- for the worker, on behalf of a handler in its own process

    async def whole(self, name: str) -> str:
        """Return a complete result, also if it is a blob."""
        found = (await self.before())[name]
        return found.result if found.hash is None else await self._journal.whole(self._job, found)

    async def note_change(self, name: str) -> None:
        """Record that the code of a step has changed since its result was stored."""
        await self._journal.note_change(self._job, name)

    async def now(self) -> int:
        """Return the database's time."""
        return await self._journal.now()

    def _take(self, name: str, ours: bool = False) -> None:
        if not ours:
            _check_name(name)
        if name in self._taken:
            raise PermanentError(f"two steps of one job are called {name!r}; each needs a name of its own")
        self._taken.add(name)


async def _raising(suspend: Suspend | Release) -> NoReturn:
    raise Suspended(suspend)


def _check_name(name: str) -> None:
    try:
        check_name("step", name)
    except BadInput as refusal:
        raise PermanentError(str(refusal)) from None
    if name.startswith(OWN):
        raise PermanentError(f"the step {name!r}: names that begin with {OWN} are kept for waits")


def _text(name: str, value: Any) -> str:
    try:
        return result_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PermanentError(f"the step {name!r} returned what cannot be kept: {error}") from None
