"""Call a handler in a process of its own, and describe how that process ended."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from keptwork.context import Context
from keptwork.core.durations import size_text
from keptwork.core.function_ref import is_found
from keptwork.errors import BadInput
from keptwork.job import JobType
from keptwork.jobs.outcome import Raised
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.process.pool import CageLost, Cages, Ending, Longest, Talk
from keptwork.process.resource_limits import Limits
from keptwork.store import Job
from keptwork.store.contract.records import JOB_COLUMNS
from keptwork.workers.isolation.rpc import LARGEST_ANSWER, LARGEST_WISH, decoded, granted

PROGRAM = "keptwork.workers.isolation.handler_process"


class Killed(Exception):
    """The handler's process ended without an outcome."""


class Isolation:
    """The processes of one worker's isolated jobs."""

    def __init__(self, kinds: Iterable[JobType], database: str | None) -> None:
        isolated = [kind for kind in kinds if kind.isolated is not None]
        self._whats = {(kind.name, kind.version): _what(kind, database) for kind in isolated}
        self._cages = Cages(PROGRAM, list(self._whats.values()))

    async def call(self, kind: JobType, job: Job, context: Context) -> Any:
        """Return the outcome of the handler, or a `Raised` that describes how its process ended.

        If this call is cancelled, it ends the process and all its children.
        """
        told = job if spans.tracer is None else replace(job, trace_id=spans.carried(job.trace_id))
        request = json.dumps([told[name] for name in JOB_COLUMNS]).encode()

        def begun(talk: Talk) -> None:
            context.pass_on_stop(talk.ask_to_stop)

        async def reply(asked: bytes) -> Any:
            return await granted(context, asked)

        what, longest = self._whats[kind.name, kind.version], Longest(LARGEST_ANSWER, LARGEST_WISH)
        try:
            ending = await self._cages.run(what, kind.limits, request, longest, begun, reply)
        except CageLost as error:
            return Raised(error, text=str(error) or "killed: the process that watched over it is gone")
        except ValueError as error:
            return Raised(PermanentError(f"the handler returned what cannot be kept: {error}"), "output")
        return said(ending, kind.limits)

    async def close(self) -> None:
        await self._cages.close()


def check(kinds: Iterable[JobType]) -> None:
    """Raise `BadInput` for a function that another process could not import, before a job is lost to it."""
    for kind in kinds:
        if kind.isolated is not None and not is_found(kind.isolated, kind.function):
            raise BadInput(
                what=f"job {kind.name}: isolation='process' needs a function that can be imported, and "
                f"{kind.isolated.module} has another thing, or nothing, called {kind.isolated.qualname}"
            )


def said(ending: Ending, limits: Limits) -> Any:
    """Return the outcome of a job whose process ended this way."""
    if ending.refused is not None:
        return Raised(Killed(), "fetch", f"it could not be started in a process of its own: {ending.refused}")
    if ending.answer is None:
        return Raised(Killed(), text=death(ending, limits))
    answer = decoded(ending.answer)
    if isinstance(answer, Raised) and isinstance(answer.error, MemoryError) and limits.memory_bytes is not None:
        return Raised(
            answer.error, text=f"MemoryError: it needs more than its {size_text(limits.memory_bytes)} of memory"
        )
    return answer


def death(ending: Ending, limits: Limits) -> str:
    """Describe how a process without an outcome ended."""
    code = ending.code
    if ending.why == "memory":
        return f"killed: it used more than its {size_text(limits.memory_bytes or 0)} of memory"
    if code is not None and code >= 0:
        return f"its process ended with exit code {code} and without an answer"
    by = "killed" if code is None else f"killed by {_name(-code)}"
    if ending.why == "cpu" or code == -signal.SIGXCPU or ending.cpu_seconds > (limits.cpu_seconds or float("inf")):
        return f"{by}: it used more than its {limits.cpu_seconds} s of CPU time"
    return by


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _what(kind: JobType, database: str | None) -> dict[str, Any]:
    return {"target": kind.isolated, "database": database, "version": kind.version}
