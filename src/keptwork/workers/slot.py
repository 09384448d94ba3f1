"""A slot runs one job at a time, each in its own task and context, for as long as the worker lives.

The slot's own task only waits. All changes that a handler makes to its task, its context variables, its name, or its
decimal context end with the job. Nothing but a return leaves the job's task.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from contextvars import Context as Variables
from typing import Any

from keptwork.context import Context
from keptwork.jobs.outcome import Raised, Release, Suspend
from keptwork.observability import logs, spans
from keptwork.outcomes import Cancel, Snooze
from keptwork.store import Job
from keptwork.workers.artifacts import Shelf
from keptwork.workers.checkpoint_writer import Journal
from keptwork.workers.handler_call import Executor
from keptwork.workers.steps import Steps
from keptwork.workers.waits import Desk

END_SECONDS = 4.0
"""Seconds that a cancelled handler has to end. It is less than a worker has for its own shutdown."""

_NOTHING = object()
"""The outcome of a task that was cancelled before its first line ran."""


class Slot:
    """Takes jobs from the inbox and reports their outcomes.

    `variables` is the context that each job starts from. `vacant` is called when the slot's task ends before the worker
    closes it, so that another slot takes its place.
    """

    def __init__(
        self,
        inbox: asyncio.Queue[Job],
        executor: Executor,
        holds: Callable[[Job], bool],
        shelf: Shelf,
        journal: Journal,
        desk: Desk,
        finish: Callable[[Job, Any], None],
        variables: Variables,
        vacant: Callable[[Slot, BaseException | None], None],
    ) -> None:
        self._inbox = inbox
        self._executor = executor
        self._holds = holds
        self._shelf = shelf
        self._journal = journal
        self._desk = desk
        self._finish = finish
        self._variables = variables
        self._own_decimal = _decimal_setter(variables)
        self._vacant = vacant
        self._context: Context | None = None
        self._work: asyncio.Task[None] | None = None
        self._said: Any = _NOTHING
        self._stopped = False
        self._closing = False
        self._abandoned = False
        self.left: asyncio.Task[None] | None = None
        self._cancelled = ""
        self._patience: asyncio.TimerHandle | None = None
        self.job: Job | None = None
        self._loop = asyncio.get_running_loop()
        self.task = self._loop.create_task(self._run(), context=variables.copy())
        self.task.add_done_callback(self._ended)

    def stop(self, *, hard: bool, cancelled: str = "") -> None:
        """Request that the handler stop; with `hard`, cancel it where it waits.

        If `cancelled` gives a reason, the job is cancelled for it; otherwise the job goes back into the queue.
        """
        if self._context is not None:
            self._cancelled = self._cancelled or cancelled
            self._context.request_stop()
            if hard and not self._stopped and self._work is not None:
                self._stopped = True
                self._work.cancel()
                self.give_time_to_end(Release("its worker stopped it"))

    def give_time_to_end(self, said: Any) -> None:
        """Complete the job with this outcome and abandon its cancelled handler, if the handler does not end in time."""
        if self._patience is not None:
            self._patience.cancel()
        self._patience = asyncio.get_running_loop().call_later(END_SECONDS, self.abandon, said)

    @property
    def work(self) -> asyncio.Task[None] | None:
        """The task of the job."""
        return self._work

    def cancel(self, grace: float) -> None:
        """Request that the handler of a cancelled job stop, and cancel the handler after the grace period."""
        if self.job is not None and not self._cancelled:
            self._cancelled = "it was asked to stop"
            self.stop(hard=False)
            self._patience = asyncio.get_running_loop().call_later(grace, self._lose_patience, grace)

    def _lose_patience(self, grace: float) -> None:
        self._cancelled = f"it was asked to stop, and did not within {grace:g} s"
        self.stop(hard=True)

    def close(self) -> None:
        """End the slot. A running handler is cancelled where it waits, and its job is left to its lease."""
        self._closing = True
        (self.task if self._work is None else self._work).cancel()

    def abandon(self, said: Any) -> None:
        """Complete the job with this outcome although its handler has not ended.

        The handler keeps its task, and another slot takes the place of this one.
        """
        job = self.job
        if job is not None and self._open:
            self._abandoned, self.left = True, self._work
            said = self._agreed(said)
            self._leave()
            self._finish(job, said)
            self._vacant(self, None)

    @property
    def _open(self) -> bool:
        return not self._closing and not self._abandoned

    async def _run(self) -> None:
        while True:
            job = await self._inbox.get()
            context = Context(job, self._shelf, Steps(job, self._journal, owner=self), self._desk)
            self.job, self._context, self._said = job, context, _NOTHING
            variables = self._variables.copy()
            variables.run(self._set_variables, job)
            noted = self._note_outcome(job, context) if spans.tracer is None else self._note_in_span(job, context)
            work = self._work = _started(noted, variables, job.kind, self._loop)
            if not work.done():
                try:  # noqa: SIM105 - one object less for each job
                    await work
                except asyncio.CancelledError:  # of the job: a cancelled slot passes it on to the job's task
                    pass
            if not self._open:
                return
            said = self._agreed(self._stopped_as(asyncio.CancelledError())) if self._said is _NOTHING else self._said
            self._leave()
            self._finish(job, said)

    def _set_variables(self, job: Job) -> None:
        """Set the context variables of a job in the context that its task starts with."""
        logs.job.set(job)
        spans.ambient.set(job.trace_id)
        if self._own_decimal is not None:
            self._own_decimal()

    def _leave(self) -> None:
        """Drop all references to the job. From here on its context refuses durable calls."""
        if self._context is not None:
            self._context.steps.close()
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._cancelled, self._stopped = "", False
        self.job = self._context = self._work = None
        self._said = _NOTHING

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report a slot that the worker did not close: a handler cancelled every task, or this class has a defect."""
        if self._open:
            self._abandoned = True
            self._vacant(self, asyncio.CancelledError() if task.cancelled() else task.exception())

    # --- in the job's task

    async def _note_in_span(self, job: Job, context: Context) -> None:
        with spans.running(job) as span:
            await self._note_outcome(job, context)
            _note_in_span(span, self._said)

    async def _note_outcome(self, job: Job, context: Context) -> None:
        """Run the job and note its outcome. Every exception becomes an outcome, because one that leaves a task can end
        the loop."""
        if self._work is None:  # the first step of this task runs inside the slot's task
            self._work = asyncio.current_task(self._loop)
        if not self._holds(job):
            self._said = Release("its lease was lost before it began")
            return
        try:
            said = await self._executor.run(job, context)
        except asyncio.CancelledError as error:
            said = self._stopped_as(error)
        except BaseException as error:
            said = Raised(error)
        said = context.steps.settled(said)
        if self._context is context:  # otherwise the slot has abandoned it
            self._said = self._agreed(said)

    def _stopped_as(self, error: asyncio.CancelledError) -> Release | Raised:
        return Release("its worker stopped it") if self._stopped else Raised(error)

    def _agreed(self, said: Any) -> Any:
        """Return the outcome, changed for a cancelled job.

        It is not retried and does not wait. If its handler had to be stopped, the job has not succeeded.
        """
        if not self._cancelled:
            return said
        if isinstance(said, Raised):
            return Cancel(f"{self._cancelled}, and ended with {said.described}")
        return Cancel(self._cancelled) if self._stopped or isinstance(said, Release | Suspend) else said


Work = Coroutine[Any, Any, None]

if sys.version_info >= (3, 12):

    def _started(work: Work, variables: Variables, name: str, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Run the work up to its first pause. Work that never pauses costs no turn of the event loop."""
        if loop.get_task_factory() is None:
            return asyncio.Task(work, loop=loop, name=name, context=variables, eager_start=True)
        return loop.create_task(work, name=name, context=variables)

else:

    def _started(work: Work, variables: Variables, name: str, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        """Run the work up to its first pause without the eager tasks of Python 3.12.

        The first step is caught on its way to the event loop and run immediately.
        """
        if not isinstance(loop, asyncio.BaseEventLoop) or loop.get_task_factory() is not None or loop.get_debug():
            return loop.create_task(work, name=name, context=variables)
        caught: list[tuple[Callable[..., Any], tuple[Any, ...], Variables | None]] = []

        def call_soon(callback: Callable[..., Any], *arguments: Any, context: Variables | None = None) -> None:
            caught.append((callback, arguments, context))

        loop.call_soon = call_soon  # type: ignore[method-assign,assignment]
        try:
            task = asyncio.Task(work, loop=loop, name=name, context=variables)
        finally:
            del loop.call_soon
        for callback, arguments, context in caught:
            if getattr(callback, "__self__", None) is task:
                _step_now(loop, callback, variables)
            else:  # of an object that was collected meanwhile
                loop.call_soon(callback, *arguments, context=context)
        return task

    def _step_now(loop: asyncio.AbstractEventLoop, step: Callable[[], Any], variables: Variables) -> None:
        """Run a task's step inside the step of the current task, then restore the loop's current task."""
        current: Any = asyncio.current_task(loop)
        asyncio.tasks._leave_task(loop, current)
        try:
            variables.run(step)
        finally:
            asyncio.tasks._enter_task(loop, current)


def _decimal_setter(variables: Variables) -> Callable[[], None] | None:
    """Return a function that gives a job its own decimal context, or None if these variables hold none.

    A copied context would still share the one mutable object that `decimal.getcontext()` returns.
    """
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return None
    found = next((value for value in variables.values() if isinstance(value, decimal.Context)), None)
    return None if found is None else lambda: decimal.setcontext(found.copy())


def _note_in_span(span: Any, said: Any) -> None:
    spans.noted(span, keptwork__outcome=_outcome(said))
    if isinstance(said, Raised):
        spans.failed(span, type(said.error).__name__)


def _outcome(said: Any) -> str:
    """Return the outcome in one word for a span. The event log has the details."""
    words = {Raised: "raised", Release: "released", Suspend: "suspended", Snooze: "snoozed", Cancel: "cancelled"}
    return words.get(type(said), "returned")
