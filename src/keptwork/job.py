"""A kind of job: its function and its rules."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from keptwork.core.durations import Size, Span, span_us
from keptwork.core.function_ref import Target, target_of
from keptwork.core.validation import LARGEST_INT, LARGEST_PAYLOAD, check_attempts, check_name, check_priority
from keptwork.errors import BadInput
from keptwork.handles import Handle
from keptwork.jobs.breaker import Breaker
from keptwork.jobs.concurrency import ALL, TENANT, Throttle
from keptwork.jobs.enqueue_window import Window
from keptwork.observability import spans
from keptwork.process.resource_limits import Limits

if TYPE_CHECKING:
    from keptwork.app import Keptwork


Handler = Callable[..., Any] | Callable[..., Awaitable[Any]]

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class JobType:
    """The declared rules of a kind of job. Times are in microseconds."""

    name: str
    function: Handler
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 4
    lease_us: int = 60_000_000
    timeout_us: int | None = None
    backoff_us: int = 500_000
    backoff_cap_us: int = 60_000_000
    on_exhausted: Literal["dead_letter", "fail"] = "dead_letter"
    is_async: bool = True
    signature: inspect.Signature = field(default_factory=inspect.Signature)
    required: frozenset[str] = frozenset()
    accepted: frozenset[str] = frozenset()
    isolated: Target | None = None
    limits: Limits = field(default_factory=Limits)
    version: int = 0
    throttle: Throttle | None = None
    unique_us: int | None = None
    breaker: Breaker | None = None

    @classmethod
    def of(
        cls,
        function: Handler,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 4,
        lease: Span = "60s",
        timeout: Span | None = None,
        backoff: Span = "500ms",
        backoff_cap: Span = "60s",
        on_exhausted: Literal["dead_letter", "fail"] = "dead_letter",
        isolation: Literal["process"] | None = None,
        memory: Size | None = None,
        cpu: Span | None = None,
        version: int | None = None,
        limit: int | None = None,
        rate: str | None = None,
        per: str = ALL,
        unique: Span | None = None,
        breaker: str | Breaker | None = None,
    ) -> JobType:
        """Return a kind of job for a function whose first parameter is the context."""
        signature = _without_context(function)
        kind = cls(
            name or function.__name__,
            function,
            queue,
            priority,
            max_attempts,
            span_us(lease),
            None if timeout is None else span_us(timeout),
            span_us(backoff),
            span_us(backoff_cap),
            on_exhausted,
            inspect.iscoroutinefunction(function),
            signature,
            *_plain_names(signature),
            _isolated(function, isolation),
            _limits(name or function.__name__, isolation, memory, cpu),
            _version(name or function.__name__, version),
            _throttle(name or function.__name__, limit, rate, per, signature),
            None if unique is None else span_us(unique),
            _breaker(name or function.__name__, breaker),
        )
        kind._check()
        return kind

    def _check(self) -> None:
        try:
            check_name("kind", self.name)
            check_name("queue", self.queue)
            check_priority(self.priority)
            check_attempts(self.max_attempts)
        except BadInput as refusal:
            raise BadInput(what=f"job {self.name}: {refusal}") from None
        if self.on_exhausted not in ("dead_letter", "fail"):
            raise BadInput(what=f"job {self.name}: on_exhausted is {self.on_exhausted!r}; say 'dead_letter' or 'fail'")
        if self.unique_us == 0:
            raise BadInput(what=f"job {self.name}: unique= is no time at all. Give a window such as unique='10m'.")
        if not self.lease_us:
            raise BadInput(what=f"job {self.name}: a lease of no time at all cannot be kept; 30s to 120s is usual")

    @property
    def hold_key(self) -> str | None:
        """The hold of its jobs while their breaker is open, or None."""
        return None if self.breaker is None else self.breaker.hold_key

    def insist_not_unique(self, where: str) -> None:
        """Refuse a way to enqueue that cannot enforce a declared `unique` window."""
        if self.unique_us is not None:
            raise BadInput(what=f"job {self.name}: unique= does not apply to {where}. Use a kind without it.")

    def payload(self, arguments: Mapping[str, Any]) -> str:
        """Return the arguments as JSON. Raise `BadInput` if the function would not accept them or JSON cannot hold
        them."""
        try:
            self.check(arguments)
            text = _written(arguments) if arguments else "{}"
        except (TypeError, ValueError, RecursionError) as error:
            raise BadInput(what=f"job {self.name}: {error}") from None
        if len(text) > LARGEST_PAYLOAD:
            raise BadInput(what=f"job {self.name}: a payload of {len(text):,} bytes is over the limit of 1 MiB")
        return text

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise the exception that a call with these arguments would raise.

        Binding arguments is slow, so it is done only if a comparison of their names is not enough.
        """
        if not self.required <= arguments.keys() <= self.accepted:
            self.signature.bind(**arguments)


_written = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _plain_names(signature: inspect.Signature) -> tuple[frozenset[str], frozenset[str]]:
    """Return the required and the accepted parameter names, or impossible ones if names alone do not decide."""
    if any(p.kind is p.POSITIONAL_ONLY for p in signature.parameters.values()):
        return frozenset({""}), frozenset()
    named = [p for p in signature.parameters.values() if p.kind in _NAMED]
    return frozenset(p.name for p in named if p.default is p.empty), frozenset(p.name for p in named)


def _version(name: str, version: object) -> int:
    """Return the version. A handler without a version is older than all others."""
    if version is None:
        return 0
    if type(version) is not int or not 1 <= version <= LARGEST_INT:
        raise BadInput(what=f"job {name}: version is {version!r}; it is a whole number from 1 to {LARGEST_INT}")
    return version


def _isolated(function: Handler, isolation: str | None) -> Target | None:
    if isolation not in (None, "process"):
        raise BadInput(what=f"job {function.__name__}: isolation is {isolation!r}; say 'process', or leave it out")
    return None if isolation is None else target_of(function)


def _limits(name: str, isolation: str | None, memory: Size | None, cpu: Span | None) -> Limits:
    if isolation is None and (memory is not None or cpu is not None):
        raise BadInput(
            what=f"job {name}: memory and cpu are limits of a process of its own; say isolation='process' too"
        )
    try:
        return Limits.of(memory, cpu)
    except BadInput as refusal:
        raise BadInput(what=f"job {name}: {refusal}") from None


def _throttle(
    name: str, limit: int | None, rate: str | None, per: str, signature: inspect.Signature
) -> Throttle | None:
    """Return the limit for all jobs of the kind, each tenant's jobs, or jobs with equal values of an argument."""
    try:
        throttle = Throttle.of(limit, rate, per)
    except BadInput as refusal:
        raise BadInput(what=f"job {name}: {refusal}") from None
    if throttle is None and per != ALL:
        raise BadInput(what=f"job {name}: per={per!r} says what to limit, but not how; add limit= or rate=")
    if throttle is not None and ":" in name:
        raise BadInput(what=f"job {name}: a job with a limit has no colon in its name; give it another name=")
    if per not in (ALL, TENANT, *signature.parameters):
        raise BadInput(what=f"job {name}: per is {per!r}; say 'tenant', or the name of one of its arguments")
    return throttle


def _breaker(name: str, declared: str | Breaker | None) -> Breaker | None:
    if declared is not None and not isinstance(declared, str | Breaker):
        raise BadInput(what=f"job {name}: breaker is {declared!r}; say its name, or Breaker(name, cooldown=…)")
    try:
        return None if declared is None else Breaker.of(declared)
    except BadInput as refusal:
        raise BadInput(what=f"job {name}: {refusal}") from None


def _without_context(function: Handler) -> inspect.Signature:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in _POSITIONAL:
        raise BadInput(what=f"job {function.__name__}: its first parameter must be the context, as in def f(ctx, …)")
    return signature.replace(parameters=parameters[1:])


# A kind of job as an application declares it, and the method that enqueues its jobs.


_NOTHING = (None, None, None, None)


class DeclaredJob:
    """A kind of job, as `@app.job` returns it. Enqueue a job, or call the function directly."""

    def __init__(self, app: Keptwork, kind: JobType) -> None:
        self.kind = kind
        self.__wrapped__ = kind.function
        self._app = app

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.function(*args, **kwargs)

    def in_database(self, url: str) -> None:
        """Make the application use this database, in a process that has not opened a database."""
        self._app.url = url

    async def enqueue(
        self,
        *,
        _key: str | None = None,
        _run_in: Span = 0,
        _priority: int | None = None,
        _queue: str | None = None,
        _correlation_id: str | None = None,
        _trace_id: str | None = None,
        _unique: Span | None = None,
        _debounce: Span | None = None,
        _debounce_most: Span | None = None,
        _tx: Any = None,
        **arguments: Any,
    ) -> Handle:
        """Enqueue one job.

        With `_tx`, the job is enqueued when that transaction commits. Pass a transaction of `app.transaction()` or, on
        PostgreSQL, your own asyncpg connection.

        `_key` is an idempotency key: a repeated key returns the handle of the existing job. With `_unique="10m"`, the
        key applies for 10 minutes after the first call, with any outcome of the job. Without a key, `_unique`
        compares the arguments. With `_debounce="5s"`, one job runs 5 s after the last call, with the arguments of that
        call, and at the latest `_debounce_most` after the first call (default: 10 times `_debounce`). Without a key,
        that covers all jobs of the kind.

        `_debounce` excludes `_run_in`, `_unique`, and a kind that is declared with `unique=`.

        `_trace_id` names the trace of the job. If it is a `traceparent` header, the spans of the job continue that
        trace.
        """
        if _priority is not None:
            check_priority(_priority)
        said = (_key, _queue, _correlation_id, _trace_id)
        for what, text in () if said == _NOTHING else zip(("key", "queue", "correlation", "trace"), said, strict=True):
            if text is not None:
                check_name(what, text)
        await self._app.open()
        new = self._app.new_job(self.kind, arguments)
        if said != _NOTHING or _priority is not None or _run_in != 0:
            new = new._replace(
                key=_key,
                delay_us=span_us(_run_in),
                correlation_id=_correlation_id,
                trace_id=spans.said(_trace_id),
                priority=new.priority if _priority is None else _priority,
                queue=new.queue if _queue is None else _queue,
            )
        await self._app.declare_limit(self.kind, _tx)
        window = Window.of(new, _unique, _debounce, _debounce_most, declared_us=self.kind.unique_us)
        if window is not None:
            new = new._replace(trace_id=spans.carried(new.trace_id))
            return Handle(await window.enqueue(await self._app.queue(_tx), new), self._app)
        return Handle(await self._app.put(new, _tx), self._app)
