"""Waits of a handler for other things than time: children, crews, signals, and approvals. None occupies a worker.

Each wait is named by its number among waits of its kind, so that a later run finds it again. What arrived is stored
like the result of a step. If it has not arrived, the job suspends, and the transaction that suspends it checks once
more whether it arrived meanwhile.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from keptwork.core.durations import Span
from keptwork.job import JobType
from keptwork.outcomes import PermanentError
from keptwork.process.tool import Tools
from keptwork.store import Job, Store
from keptwork.workers.breaker_check import Gate
from keptwork.workers.checkpoint_writer import Journal
from keptwork.workers.children import Child, Children, Spawnable
from keptwork.workers.parked_waits import Wait
from keptwork.workers.steps import Steps
from keptwork.workers.waits_approvals import Approvals
from keptwork.workers.waits_crews import Crews
from keptwork.workers.waits_signals import Signals

T = TypeVar("T")

USUAL_GRACE = 30.0

__all__ = ["Child", "Desk", "Spawnable", "Waits"]


class Desk:
    """Services of a worker for all its handlers: the store, the kinds of jobs, programs, and breakers.

    `grace` is in seconds.
    """

    def __init__(
        self, journal: Journal, kinds: Mapping[str, JobType], tools: Tools, gate: Gate, grace: float = USUAL_GRACE
    ) -> None:
        self._journal = journal
        self.kinds = kinds
        self.tools = tools
        self.gate = gate
        self.grace = grace

    async def ask(self, job: Job, question: Callable[[Store], Awaitable[T]]) -> T:
        return await self._journal.ask(job, question)


class Waits:
    """The waits of one run of a handler. An ordinary function gets results, an async function gets awaitables."""

    def __init__(self, job: Job, steps: Steps, desk: Desk | None) -> None:
        if desk is None:
            raise PermanentError(
                "in a process of its own a handler cannot spawn, join or wait for crews, events and approvals; leave "
                "out isolation='process', or do that in the job that enqueues it"
            )
        self._steps = steps
        self._children = Children(job, steps, desk.ask, desk.kinds)
        self._crews = Crews(job, steps, desk.ask, desk.kinds)
        self._signals = Signals(job, steps, desk.ask)
        self._approvals = Approvals(job, steps, desk.ask)

    def spawn(self, job: Spawnable | str, arguments: Mapping[str, Any]) -> Any:
        name = self._steps.own_name("spawn", None)
        return self._steps.waiting(None, self._children.spawn, name, job, arguments)

    def spawn_many(self, job: Spawnable | str, many: Sequence[Mapping[str, Any]]) -> Any:
        name = self._steps.own_name("spawn", None)
        return self._steps.waiting(None, self._children.spawn_many, name, job, many)

    def join(self, children: Child | Sequence[Child], return_exceptions: bool, timeout: Span | None) -> Any:
        name = self._steps.own_name("join", None)
        wait = Wait("ctx.join(…)", "Limit the wait itself: ctx.join(…, timeout=…).")
        return self._steps.waiting(wait, self._children.join, name, children, return_exceptions, timeout)

    def crew(
        self, job: Spawnable | str, task: str, workers: int, timeout: Span | None, arguments: Mapping[str, Any]
    ) -> Any:
        name = self._steps.own_name("crew", None)
        wait = Wait("ctx.crew(…)", "Limit the crew itself: ctx.crew(…, _timeout=…).")
        return self._steps.waiting(wait, self._crews.crew, name, job, task, workers, timeout, arguments)

    def wait_for_event(self, event: str, timeout: Span | None) -> Any:
        name = self._steps.own_name(f"event {event}", None)
        call = f"ctx.wait_for_event({event!r}"
        wait = Wait(f"{call})", f"Limit the wait itself: {call}, timeout=…).")
        return self._steps.waiting(wait, self._signals.wait, name, event, timeout)

    def wait_for_approval(
        self, question: str, by: str | None, expires: Span | None, details: Any, named: str | None
    ) -> Any:
        name = self._steps.own_name("approval", named)
        wait = Wait("ctx.wait_for_approval(…)", "Limit the wait itself: ctx.wait_for_approval(…, expires=…).")
        return self._steps.waiting(wait, self._approvals.wait, name, question, by, expires, details)
