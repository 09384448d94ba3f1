"""A slot: runs one job at a time, for as long as the worker lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from keptwork import logs, spans, trace_context
from keptwork.outcomes import Cancel, Snooze
from keptwork.store import Job
from keptwork.worker.context import Context
from keptwork.worker.executor import Executor
from keptwork.worker.journal import Journal
from keptwork.worker.settlement import Raised, Release, Suspend
from keptwork.worker.shelf import Shelf
from keptwork.worker.steps import Steps
from keptwork.worker.waits import Desk


class Slot:
    """Takes jobs from the inbox and tells what their handlers said."""

    def __init__(
        self,
        inbox: asyncio.Queue[Job],
        executor: Executor,
        holds: Callable[[Job], bool],
        shelf: Shelf,
        journal: Journal,
        desk: Desk,
        finish: Callable[[Job, Any], None],
    ) -> None:
        self._inbox = inbox
        self._executor = executor
        self._holds = holds
        self._shelf = shelf
        self._journal = journal
        self._desk = desk
        self._finish = finish
        self._context: Context | None = None
        self._stopped = False
        self._closing = False
        self._cancelled = ""
        self._patience: asyncio.TimerHandle | None = None
        self.job: Job | None = None
        self.task = asyncio.create_task(self._run())

    def stop(self, *, hard: bool, cancelled: str = "") -> None:
        """Asks the handler to come to an end; hard, it is stopped where it waits. `cancelled` says why its job is to be
        cancelled, if it is: else it goes back into the queue."""
        if self._context is not None:
            self._cancelled = self._cancelled or cancelled
            self._context.request_stop()
            if hard and not self._stopped:
                self._stopped = True
                self.task.cancel()

    def cancel(self, grace: float) -> None:
        """Somebody wants the job cancelled: asks the handler to come to an end, and after the grace stops it."""
        if self.job is not None and not self._cancelled:
            self._cancelled = "it was asked to stop"
            self.stop(hard=False)
            self._patience = asyncio.get_running_loop().call_later(grace, self._lose_patience, grace)

    def _lose_patience(self, grace: float) -> None:
        self._cancelled = f"it was asked to stop, and did not within {grace:g} s"
        self.stop(hard=True)

    def close(self) -> None:
        self._closing = True
        self.task.cancel()

    async def _run(self) -> None:
        while not self._closing:
            job = await self._inbox.get()
            self.job, self._context = job, Context(job, self._shelf, Steps(job, self._journal), self._desk)
            logs.job.set(job)
            trace_context.ambient.set(job.trace_id)
            said = await (self._said if spans.tracer is None else self._said_in_span)(job, self._context)
            self.job = self._context = None
            logs.job.set(None)  # an idle slot holds on to nothing; the trace is that of the next job soon enough
            self._finish(job, said)

    async def _said_in_span(self, job: Job, context: Context) -> Any:
        with spans.running(job) as span:
            said = await self._said(job, context)
            spans.noted(span, keptwork__outcome=_outcome(said))
            if isinstance(said, Raised):
                spans.failed(span, type(said.error).__name__)
        return said

    async def _said(self, job: Job, context: Context) -> Any:
        if not self._holds(job):
            return Release("its lease was lost before it began")
        try:
            return self._agreed(await self._executor.run(job, context))
        except asyncio.CancelledError as error:
            if self._closing:
                raise
            return self._agreed(Release("its worker stopped it") if self._stopped else Raised(error))
        finally:
            self._forget_stop()

    def _agreed(self, said: Any) -> Any:
        """A job that is to be cancelled is not tried again, and does not wait; one whose handler had to be stopped has
        not succeeded."""
        if not self._cancelled:
            return said
        if isinstance(said, Raised):
            return Cancel(f"{self._cancelled}, and ended with {said.described}")
        return Cancel(self._cancelled) if self._stopped or isinstance(said, Release | Suspend) else said

    def _forget_stop(self) -> None:
        """The next job must find no trace of the stop: a task that counts as being cancelled breaks its task groups."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self._cancelled, self._stopped = "", False
        while self.task.cancelling() and not self._closing:  # by us, or by the handler itself
            self.task.uncancel()


def _outcome(said: Any) -> str:
    """In a word, for a span: what follows from it is in the event log."""
    words = {Raised: "raised", Release: "released", Suspend: "suspended", Snooze: "snoozed", Cancel: "cancelled"}
    return words.get(type(said), "returned")
