"""Run the handler of one job and return its outcome, however the handler ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from keptwork.context import Context
from keptwork.core.validation import OWN_KINDS
from keptwork.job import JobType
from keptwork.jobs.outcome import Raised, Release, Suspend
from keptwork.outcomes import ValidationError
from keptwork.store import Job
from keptwork.workers.breaker_check import Gate
from keptwork.workers.handler_timeout import Deadline, Overrun
from keptwork.workers.handlers import Handlers, NoThread, Threads
from keptwork.workers.isolation.call import Isolation
from keptwork.workers.parked_waits import Suspended
from keptwork.workers.steps import said_by

MOST_UNKNOWN = 1000
"""Maximum number of unknown kinds that claims exclude. Beyond it, the worker claims some jobs in vain, with growing
backoff."""


class Executor:
    """Finds the handler of a job, passes the arguments, and returns the outcome.

    `unknown` contains the kinds that were claimed without a handler. `overran` is called for a handler that returned
    after its time-out. `give_time_to_end` is called for a handler that was cancelled at its time-out, with the outcome
    if it does not end. `exhausted` is called when this process cannot start a thread.
    """

    def __init__(
        self,
        gate: Gate,
        handlers: Handlers,
        threads: Threads,
        isolation: Isolation,
        overran: Callable[[Job, Overrun], None],
        give_time_to_end: Callable[[Job, Raised], None],
        exhausted: Callable[[str], None],
    ) -> None:
        self._gate = gate
        self._overran = overran
        self._exhausted = exhausted
        self._give_time_to_end = give_time_to_end
        self._handlers = handlers
        self._threads = threads
        self.unknown: set[str] = set()
        self._isolation = isolation

    async def run(self, job: Job, context: Context) -> Any:
        """Return what the handler returned or raised. Raises only if it is cancelled itself."""
        kind = self._handlers.newest(job.kind)
        if kind is None:
            return self._not_known(job)
        if kind.version:
            chosen = await self._of_version(kind, job, context)
            if not isinstance(chosen, JobType):
                return chosen
            kind = chosen
        try:
            arguments = _arguments(job, kind)
        except ValidationError as error:
            return Raised(error, "input")
        if kind.breaker is not None and (refused := await self._gate.refusal(job, kind.breaker)) is not None:
            return refused
        try:
            if kind.timeout_us is None:
                if kind.isolated is not None or not kind.is_async:
                    return await self._call(kind, job, context, arguments)
                said = await kind.function(context, **arguments)
                return said if not context.steps.has_waits else await context.steps.parking.returned(said)
            return await self._call_in_time(kind, job, context, arguments)
        except NoThread as error:
            self._exhausted(str(error))
            return Release(f"its worker {error}", backs_off=True)
        except (Exception, SystemExit, Suspended, BaseExceptionGroup) as error:
            said = said_by(error)
        if isinstance(said, Suspend):  # raised on a thread of an async handler, while another step can be in flight
            await context.steps.parking.landed()
        return said

    def _not_known(self, job: Job) -> Release:
        """Release a job of an unknown kind and exclude its kind from later claims of this worker."""
        if len(self.unknown) < MOST_UNKNOWN:
            self.unknown.add(job.kind)
        known = ", ".join(sorted(name for name in self._handlers.names if not name.startswith(OWN_KINDS))) or "none"
        return Release(f"this worker has no handler for {job.kind!r}; it has: {known}", backs_off=True)

    async def _of_version(self, newest: JobType, job: Job, context: Context) -> JobType | Release | Raised:
        """Return the handler of the version that the job started under. A job in its first claim uses the newest."""
        try:
            begun = await context.steps.begun_as() if job.epoch else None
        except Exception as error:
            return Raised(error, "fetch")
        chosen = newest if begun is None else self._handlers.of_version(newest.name, begun)
        if isinstance(chosen, JobType):
            context.steps.version = chosen.version
        return chosen

    async def _call(
        self, kind: JobType, job: Job, context: Context, arguments: dict[str, Any], deadline: Deadline | None = None
    ) -> Any:
        if kind.isolated is not None:
            return await self._isolation.call(kind, job, context)
        if kind.is_async:
            called = kind.function(context, **arguments)
            said = await (called if deadline is None else deadline.kept_by(called))
            return said if not context.steps.has_waits else await context.steps.parking.returned(said)
        return await self._threads.call(_called, kind, context, arguments)

    async def _call_in_time(self, kind: JobType, job: Job, context: Context, arguments: dict[str, Any]) -> Any:
        """Run the handler under its time limit. A thread cannot be ended, but its handler can check
        `cancel_requested`."""
        seconds = (kind.timeout_us or 0) / 1_000_000
        late = Raised(TimeoutError(f"it took longer than {seconds:g} s, and ignores its cancellation"))
        deadline = Deadline(seconds, partial(self._give_time_to_end, job, late))
        try:
            async with deadline:
                said = await self._call(kind, job, context, arguments, deadline)
        except TimeoutError:
            context.request_stop()
            raise
        if (overrun := deadline.overrun()) is not None:
            self._overran(job, overrun)
        return said


def _called(kind: JobType, context: Context, arguments: dict[str, Any]) -> Any:
    """Call a handler on its thread. Exceptions are returned, because a future cannot carry every exception."""
    try:
        return kind.function(context, **arguments)
    except BaseException as error:
        return said_by(error)


def _arguments(job: Job, kind: JobType) -> dict[str, Any]:
    if job.payload == "{}" and not kind.signature.parameters:
        return {}
    try:
        arguments = json.loads(job.payload)
        if not isinstance(arguments, dict):
            raise TypeError("it is not an object of arguments")
        kind.check(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(f"the payload does not fit {kind.name}{kind.signature}: {error}") from None
    return arguments
