"""What a handler sees of its job."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from keptwork import ids, spans, trace_context
from keptwork.breaker import Breaker
from keptwork.lifecycle import JOB
from keptwork.moments import Span
from keptwork.outcomes import PermanentError
from keptwork.process.tool import Tools
from keptwork.schedule import tick_of
from keptwork.store import Artifact, Job, Store
from keptwork.worker.breaker_gate import Gate
from keptwork.worker.shelf import Content, Keeps
from keptwork.worker.steps import Steps
from keptwork.worker.waits import USUAL_GRACE, Child, Desk, Spawnable, Waits

T = TypeVar("T")


class Context:
    """The first argument of every handler.

    >>> # async def fetch(ctx, url): ctx.attempt, ctx.idempotency_key("get"), ctx.cancel_requested
    """

    __slots__ = ("_desk", "_heard", "_job", "_shelf", "_steps", "_stop_at", "_waits")

    def __init__(self, job: Job, shelf: Keeps, steps: Steps, desk: Desk | None = None) -> None:
        self._job = job
        self._shelf = shelf
        self._steps = steps
        self._desk = desk
        self._waits: Waits | None = None
        self._stop_at: float | None = None
        self._heard: Callable[[], None] | None = None

    @property
    def job_id(self) -> str:
        """The job's public id."""
        return ids.public(JOB.prefix, self._job.id)

    @property
    def tenant_id(self) -> int:
        """For the worker: whose job it is."""
        return self._job.tenant_id

    @property
    def attempt(self) -> int:
        """Which start of the job this is, from 1."""
        return self._job.attempts

    @property
    def max_attempts(self) -> int:
        """How many starts the job has in all."""
        return self._job.max_attempts

    @property
    def fencing_token(self) -> int:
        """Grows each time the job is claimed anew: a sink outside can refuse what comes with a lower one."""
        return self._job.epoch

    @property
    def correlation_id(self) -> str:
        """What this job belongs to; its own id when nothing was said."""
        return self._job.correlation_id or self.job_id

    @property
    def scheduled_at(self) -> datetime | None:
        """The tick of the schedule this job belongs to, in UTC; none if it belongs to none. It may run later."""
        return tick_of(self._job.correlation_id)

    @property
    def trace_id(self) -> str | None:
        """The trace this job belongs to, as whoever enqueued it said."""
        return trace_context.trace_id(self._job.trace_id)

    @property
    def traceparent(self) -> str | None:
        """The header that continues the trace elsewhere (W3C Trace Context); none if the job belongs to no such
        trace. Where spans are recorded it names the one that is open."""
        return trace_context.traceparent(spans.carried(self._job.trace_id))

    @property
    def cancel_requested(self) -> bool:
        """Whether the handler should come to an end: the job was cancelled, or its lease is lost."""
        return self._stop_at is not None

    def breaker(self, breaker: str | Breaker) -> Any:
        """Asks a breaker whether the handler may go on with what needs it. If not, the handler ends here: its job waits
        in the queue, held and without having spent an attempt, or fails, as the breaker is declared. What becomes of
        the handler is told to it. `await` it in an async function."""
        return self._steps.waiting(None, self._gate().through, self._job, Breaker.of(breaker))

    def tell_breaker(self, name: str, ok: bool) -> None:
        """Whether what a breaker stands for works, for a breaker that was asked before, where what becomes of the
        handler does not say it."""
        self._gate().found(self._job, name, ok)

    def _gate(self) -> Gate:
        if self._desk is None:
            raise PermanentError(
                "in a process of its own a handler asks no breaker; declare it: @app.job(breaker=…, isolation=…)"
            )
        return self._desk.gate

    def idempotency_key(self, step: str) -> str:
        """The key to pass to a sink outside, so that a repeated attempt has one effect: `job id:step`."""
        return f"{self.job_id}:{step}"

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Calls the function once, whatever happens: its result is kept, and when the job runs again, after a crash, a
        retry or a wait, it is returned instead. The function gets the arguments, and returns what JSON can hold.

        `await` it in an async function; an ordinary one gets the result itself. Each step of a job has a name of its
        own. A worker that has lost the job's lease keeps nothing: `LeaseLost`.

        >>> # page = await ctx.step("get", http_get, url)
        """
        return self._steps.step(name, function, args, kwargs)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report progress from 0 to 1, with an optional text, for `keptwork jobs show --watch`.

        Call it as often as you like, from any thread: the latest report is stored, about twice a second.

        >>> # ctx.progress(0.4, "page 2 of 5")
        """
        self._steps.progress(fraction, text)

    def sleep(self, span: Span, *, name: str | None = None) -> Any:
        """Goes on after that time. Until then the job waits in the queue, and no worker is occupied: the handler is
        left at this point, and runs again from its beginning, past the steps it has done.

        `await` it in an async function; an ordinary one only calls it.

        >>> # await ctx.sleep("3d")
        """
        return self._steps.sleep(span, name)

    def spawn(self, job: Spawnable | str, /, **arguments: Any) -> Any:
        """Enqueues a child of this job, once, whatever happens: a declared job, or the name of one. What comes back
        names the child to `join`. A cancelled parent cancels its children.

        `await` it in an async function, like everything below; an ordinary one gets the value itself.

        >>> # page = await ctx.spawn(fetch, url="…")
        """
        return self._waiting.spawn(job, arguments)

    def spawn_many(self, job: Spawnable | str, many: Iterable[Mapping[str, Any]], /) -> Any:
        """Enqueues one child for each of these arguments, in their order, each once.

        >>> # pages = await ctx.spawn_many(fetch, [{"url": url} for url in urls])
        """
        return self._waiting.spawn_many(job, list(many))

    def join(
        self, children: Child | Sequence[Child], /, *, return_exceptions: bool = False, timeout: Span | None = None
    ) -> Any:
        """What children returned, once all of these have ended: a list in the same order, or one value for one child.
        Until then the job holds nothing. One that ended without success raises `JobFailed`; with `return_exceptions` it
        comes back as that, in its place. With `timeout`, if a child has not ended by then, it raises `JoinTimeout`, a
        `TimeoutError`; the children continue.

        >>> # sizes = await ctx.join(pages)
        """
        return self._waiting.join(children, return_exceptions, timeout)

    def crew(
        self, job: Spawnable | str, /, *, task: str, workers: int = 1, _timeout: Span | None = None, **arguments: Any
    ) -> Any:
        """Gives a task to a crew of one to ten workers and goes on with what they returned, a list in the order of
        their shares. Each is a job of that kind, called with these arguments and with `share` (from 0), `shares` and
        `task`. Until all have ended the job holds nothing; made once, whatever happens. In a share of a crew, the new
        one is inside that, at most five deep. One that ended without success raises `CrewFailed`.

        >>> # parts = await ctx.crew(review, task="review the release", workers=3, files=files)
        """
        return self._waiting.crew(job, task, workers, _timeout, arguments)

    def wait_for_event(self, name: str, timeout: Span | None = None) -> Any:
        """The payload of the next event of that name which this job has not had, sent by `app.send_event` to this job
        or to everyone, before or after it began to wait. Until then the job holds nothing. When the time is over it
        raises `NoEvent`, a `TimeoutError`.

        >>> # paid = await ctx.wait_for_event("payment-17", timeout="3d")
        """
        return self._waiting.wait_for_event(name, timeout)

    def wait_for_approval(
        self,
        question: str,
        *,
        by: str | None = None,
        expires: Span | None = None,
        details: Any = None,
        name: str | None = None,
    ) -> Any:
        """Asks people, and goes on with an `Approved` once somebody has approved; `details` are what they are shown
        beside the question, `by` is whom it is for. Until then the job holds nothing. It raises `ApprovalRejected`, or
        `ApprovalExpired` when nobody decided in time. A handler finds its questions again by their order, or by the
        `name` it gives one.

        >>> # approved = await ctx.wait_for_approval("Ship release 1.2?", by="ops", expires="24h")
        """
        return self._waiting.wait_for_approval(question, by, expires, details, name)

    @property
    def _waiting(self) -> Waits:
        if self._waits is None:
            self._waits = Waits(self._job, self._steps, self._desk)
        return self._waits

    def keep(self, name: str, data: Content, media_type: str | None = None) -> Awaitable[Artifact]:
        """Keeps bytes, text or a file (a Path) with the job under a name, at most 64 MiB. The same name again, in a
        later attempt too, replaces it; the same content is stored once.

        `await` it in an async function; an ordinary one only calls it, and it is kept when the call returns. A worker
        that has lost the job's lease keeps nothing: `LeaseLost`.
        """
        self._steps.insist_open("keep")
        return self._steps.keeping(self._shelf.keep, self._job, name, data, media_type)

    @property
    def steps(self) -> Steps:
        """For the worker."""
        return self._steps

    @property
    def tools(self) -> Tools:
        """For the worker: where programs run."""
        if self._desk is None:
            raise PermanentError("in a process of its own a handler runs no tools; leave out isolation='process'")
        return self._desk.tools

    @property
    def job(self) -> Job:
        """For the worker: the job as it was claimed."""
        return self._job

    async def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """For the worker: asks the store, as often as it takes while the job is held."""
        if self._desk is None:
            raise PermanentError("in a process of its own a handler has no store; leave out isolation='process'")
        return await self._desk.ask(self._job, question)

    def request_stop(self) -> None:
        """Called by the worker."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            if self._heard is not None:
                self._heard()

    def pass_on_stop(self, heard: Callable[[], None]) -> None:
        """Called by the worker: this is to be told when the handler should come to an end; it may be so already."""
        self._heard = heard
        if self.cancel_requested:
            heard()

    @property
    def grace_left(self) -> float:
        """For the worker: how many seconds of its grace are left, counted from the request to stop."""
        grace = USUAL_GRACE if self._desk is None else self._desk.grace
        return grace if self._stop_at is None else max(0.0, self._stop_at + grace - time.monotonic())
