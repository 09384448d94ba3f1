"""The handler's view of its job."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from keptwork.core import ids
from keptwork.core.durations import Span
from keptwork.core.lifecycles import JOB
from keptwork.core.schedule_rules import tick_of
from keptwork.jobs.breaker import Breaker
from keptwork.observability import spans
from keptwork.outcomes import PermanentError
from keptwork.process.tool import Tools
from keptwork.store import Artifact, Job, Store
from keptwork.workers.artifacts import Content, Keeps
from keptwork.workers.breaker_check import Gate
from keptwork.workers.steps import Steps
from keptwork.workers.waits import USUAL_GRACE, Child, Desk, Spawnable, Waits

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
        """The job's public ID."""
        return ids.public(JOB.prefix, self._job.id)

    @property
    def tenant_id(self) -> int:
        """Internal: the tenant of the job."""
        return self._job.tenant_id

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._job.attempts

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts."""
        return self._job.max_attempts

    @property
    def fencing_token(self) -> int:
        """A number that grows with each claim of the job, so that an external service can reject a request with a lower
        one."""
        return self._job.epoch

    @property
    def correlation_id(self) -> str:
        """The correlation ID of the job. Default: its own ID."""
        return self._job.correlation_id or self.job_id

    @property
    def scheduled_at(self) -> datetime | None:
        """The schedule tick that created this job, in UTC, or None. The job can run later than its tick."""
        return tick_of(self._job.correlation_id)

    @property
    def trace_id(self) -> str | None:
        """The trace ID that the job was enqueued with, or None."""
        return spans.trace_id(self._job.trace_id)

    @property
    def traceparent(self) -> str | None:
        """The header that continues the trace elsewhere (W3C Trace Context), or None if the job has no such trace.

        While spans are recorded, the header names the current span.
        """
        return spans.traceparent(spans.carried(self._job.trace_id))

    @property
    def cancel_requested(self) -> bool:
        """Whether the handler should stop: the job was cancelled, or its lease was lost."""
        return self._stop_at is not None

    def breaker(self, breaker: str | Breaker) -> Any:
        """Check a circuit breaker before the handler uses the service behind it.

        If the breaker is not closed, the handler stops here. Its job is then held in the queue without spending an
        attempt, or fails, as the breaker declares. The outcome of the handler is reported to the breaker. `await` it in
        an async function.
        """
        return self._steps.waiting(None, self._gate().through, self._job, Breaker.of(breaker))

    def tell_breaker(self, name: str, ok: bool) -> None:
        """Report explicitly whether the service behind a checked breaker works, if the outcome of the handler does not
        show it."""
        self._gate().found(self._job, name, ok)

    def _gate(self) -> Gate:
        if self._desk is None:
            raise PermanentError(
                "in a process of its own a handler asks no breaker; declare it: @app.job(breaker=…, isolation=…)"
            )
        return self._desk.gate

    def idempotency_key(self, step: str) -> str:
        """Return the key `job id:step` for an external service, so that repeated attempts have one effect."""
        return f"{self.job_id}:{step}"

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once and store its result.

        When the job runs again, after a crash, a retry, or a wait, the stored result is returned and the function is
        not called. The function receives the arguments and returns a value that JSON can hold.

        `await` it in an async function; an ordinary function gets the result directly. Give each step of a job its own
        name. If the job's lease is lost, nothing is stored, and `LeaseLost` is raised.

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
        """Wait for a time span without occupying a worker.

        The job goes back into the queue. The handler stops at this point and later runs again from its beginning, and
        its completed steps return their stored results.

        `await` it in an async function; an ordinary function only calls it.

        >>> # await ctx.sleep("3d")
        """
        return self._steps.sleep(span, name)

    def spawn(self, job: Spawnable | str, /, **arguments: Any) -> Any:
        """Enqueue a child of this job, once, even if the handler runs again.

        Pass a declared job or its name. Returns the child, which you can `join`. If the parent is cancelled, its
        children are cancelled too.

        `await` it in an async function, like every method below; an ordinary function gets the value directly.

        >>> # page = await ctx.spawn(fetch, url="…")
        """
        return self._waiting.spawn(job, arguments)

    def spawn_many(self, job: Spawnable | str, many: Iterable[Mapping[str, Any]], /) -> Any:
        """Enqueue one child for each set of arguments, in order, each once.

        >>> # pages = await ctx.spawn_many(fetch, [{"url": url} for url in urls])
        """
        return self._waiting.spawn_many(job, list(many))

    def join(
        self, children: Child | Sequence[Child], /, *, return_exceptions: bool = False, timeout: Span | None = None
    ) -> Any:
        """Wait until these children have finished, and return their results without occupying a worker meanwhile.

        Returns a list in the same order, or one value for one child. An unsuccessful child raises `JobFailed`; with
        `return_exceptions`, the exception takes the place of its result. If a child has not finished after `timeout`,
        `JoinTimeout`, a `TimeoutError`, is raised, and the children continue.

        >>> # sizes = await ctx.join(pages)
        """
        return self._waiting.join(children, return_exceptions, timeout)

    def crew(
        self, job: Spawnable | str, /, *, task: str, workers: int = 1, _timeout: Span | None = None, **arguments: Any
    ) -> Any:
        """Give a task to a crew of 1 to 10 workers, and return their results in the order of the shares.

        Each share is a job of the given kind. It is called with these arguments and with `share` (from 0), `shares`,
        and `task`. The crew is created once, even if the handler runs again. The job occupies no worker while it waits.
        A crew that a share creates is nested in the crew of that share, up to 5 levels deep. An unsuccessful crew
        raises `CrewFailed`.

        >>> # parts = await ctx.crew(review, task="review the release", workers=3, files=files)
        """
        return self._waiting.crew(job, task, workers, _timeout, arguments)

    def wait_for_event(self, name: str, timeout: Span | None = None) -> Any:
        """Wait for the next signal of this name that the job has not received, and return its payload.

        `app.send_event` sends a signal to this job or to all jobs, before or after the wait starts. The job occupies no
        worker while it waits. After `timeout`, `NoEvent`, a `TimeoutError`, is raised.

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
        """Request an approval, and return an `Approved` when a reviewer approves.

        `by` names the reviewer it is for, and `details` are shown with the question. The job occupies no worker while
        it waits. A rejection raises `ApprovalRejected`. If no reviewer decides before `expires`, `ApprovalExpired` is
        raised. When the handler runs again, it finds its requests by their order, or by `name`.

        >>> # approved = await ctx.wait_for_approval("Ship release 1.2?", by="ops", expires="24h")
        """
        return self._waiting.wait_for_approval(question, by, expires, details, name)

    @property
    def _waiting(self) -> Waits:
        if self._waits is None:
            self._waits = Waits(self._job, self._steps, self._desk)
        return self._waits

    def keep(self, name: str, data: Content, media_type: str | None = None) -> Awaitable[Artifact]:
        """Store bytes, text, or a file (a Path), at most 64 MiB, with the job as an artifact.

        An artifact of the same name is replaced, also by a later attempt. Equal content is stored once.

        `await` it in an async function. An ordinary function only calls it; the artifact is stored when the call
        returns. If the job's lease is lost, nothing is stored, and `LeaseLost` is raised.
        """
        self._steps.insist_open("keep")
        return self._steps.keeping(self._shelf.keep, self._job, name, data, media_type)

    @property
    def steps(self) -> Steps:
        """Internal: the durable steps of this run."""
        return self._steps

    @property
    def tools(self) -> Tools:
        """Internal: the runner of programs."""
        if self._desk is None:
            raise PermanentError("in a process of its own a handler runs no tools; leave out isolation='process'")
        return self._desk.tools

    @property
    def job(self) -> Job:
        """Internal: the job as it was claimed."""
        return self._job

    async def ask(self, question: Callable[[Store], Awaitable[T]]) -> T:
        """Internal: query the store for the handler, with retries while the job is held."""
        if self._desk is None:
            raise PermanentError("in a process of its own a handler has no store; leave out isolation='process'")
        return await self._desk.ask(self._job, question)

    def request_stop(self) -> None:
        """Internal: request that the handler stops."""
        if self._stop_at is None:
            self._stop_at = time.monotonic()
            if self._heard is not None:
                self._heard()

    def pass_on_stop(self, heard: Callable[[], None]) -> None:
        """Internal: set the callback for a stop request, and call it if the request has already come."""
        self._heard = heard
        if self.cancel_requested:
            heard()

    @property
    def grace_left(self) -> float:
        """Internal: the seconds left of the grace period, counted from the request to stop."""
        grace = USUAL_GRACE if self._desk is None else self._desk.grace
        return grace if self._stop_at is None else max(0.0, self._stop_at + grace - time.monotonic())
