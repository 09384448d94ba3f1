"""The OpenTelemetry spans of a job, from the request that enqueues it to the calls that it makes.

Only the OpenTelemetry API is used, and only while tracing is on. Until `use` is called, nothing of it is imported and
`tracer` is None, which is all that frequent calls check. Names and attributes follow the semantic conventions
(messaging, gen_ai, http). No span contains users' data: no payload, result, argument, or error message.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from keptwork.core import ids
from keptwork.core.lifecycles import JOB, WORKER

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider

    from keptwork.agents.conversation import Answer
    from keptwork.store import Job, NewJob


# Positions in a trace, as defined by W3C Trace Context, and their stored form.
#
# The column `trace_id` of every entity and event holds either a user's own trace ID or a position in a trace by the
# standard. A position starts with the ID of its trace, so that rows can be found by that ID:
#
#     4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
#     trace                            span             flags
#
# Users see only the trace ID. `tracestate` is not stored, which the standard permits.


# A later version can add fields after the flags. Version ff is invalid.
_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEPT = re.compile(r"(?:00-)?(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_KNOWN_FLAGS = 0x03

ambient: ContextVar[str | None] = ContextVar("keptwork_trace", default=None)
"""The position of the current request or job. Rows that it creates belong to the same trace."""


class Place(NamedTuple):
    """A position in a trace, from which spans can continue."""

    trace: str
    span: str
    flags: str


def received(header: str | None) -> str | None:
    """Return the stored form of a `traceparent` header, or None if it is invalid.

    Undefined flags are removed.

    >>> received("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    >>> received("00-00000000000000000000000000000000-00f067aa0ba902b7-01") is received("nonsense") is None
    True
    """
    found = _HEADER.fullmatch(header or "")
    if found is None or (found[1] == "00" and found[4]):  # version 00 ends with the flags
        return None
    return f"{found[2]}-{int(found[3], 16) & _KNOWN_FLAGS:02x}"


def said(text: str | None) -> str | None:
    """Return the stored form of a user's trace: a position for a header, any other text unchanged."""
    return received(text) or text


def place(kept: str | None) -> Place | None:
    """Return the stored position, or None for a user's own trace ID.

    Rows that were written by SQL can contain a complete header.
    """
    found = _KEPT.fullmatch(kept or "")
    return None if found is None else Place(found[1], found[2], found[3])


def trace_id(kept: str | None) -> str | None:
    """Return only the trace ID.

    >>> trace_id("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), trace_id("order-17")
    ('4bf92f3577b34da6a3ce929d0e0e4736', 'order-17')
    """
    found = place(kept)
    return kept if found is None else found.trace


def traceparent(kept: str | None) -> str | None:
    """Return the header that passes on a position, or None if there is no position."""
    found = place(kept)
    return None if found is None else f"00-{'-'.join(found)}"


LONGEST_NAME = 100
LONGEST_VALUE = 200
MOST_LINKS = 128
MOST_CLAIMS = 10_000
"""Maximum number of claimed jobs, not yet started, whose claim spans are remembered."""

SYSTEM = "keptwork"

tracer: Tracer | None = None
"""None while tracing is off."""

_claims: dict[tuple[int, int], SpanContext] = {}
_NOTHING: AbstractContextManager[None] = nullcontext()


def use(provider: TracerProvider | None) -> None:
    """Send spans to this provider from now on. None ends tracing."""
    global tracer
    tracer = None if provider is None else provider.get_tracer(SYSTEM)


def adopt() -> None:
    """Use the tracer provider of the surrounding program, if it has set one.

    A program that has not imported OpenTelemetry has set none.
    """
    api = sys.modules.get("opentelemetry.trace")
    if tracer is None and api is not None:
        provider = api.get_tracer_provider()
        if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
            use(provider)


# --- stored positions in a trace


def carried(given: str | None) -> str | None:
    """Return the position to store with a new row: that of the current span, unless another trace was given.

    While tracing is off, return the given trace, or the position of the current request or job.
    """
    if tracer is None:
        return given if given is not None else ambient.get()
    current = _current()
    if current is None or not _goes_on(given, current):
        return given
    return f"{current.trace_id:032x}-{current.span_id:016x}-{int(current.trace_flags) & 0x03:02x}"


def inherited(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """Return new jobs with the position of the current request or job, while tracing is off."""
    place = ambient.get()
    return jobs if place is None else [job if job.trace_id else job._replace(trace_id=place) for job in jobs]


def here() -> tuple[str, str] | None:
    """Return the IDs of the current trace and span, or None."""
    current = None if tracer is None else _current()
    return None if current is None else (f"{current.trace_id:032x}", f"{current.span_id:016x}")


def _current() -> SpanContext | None:
    from opentelemetry.trace import get_current_span

    found = get_current_span().get_span_context()
    return found if found.is_valid else None


def _goes_on(given: str | None, current: SpanContext) -> bool:
    """Return whether the current span is in the given trace. A user's own trace ID is never replaced."""
    if given is None:
        return True
    named = place(given)
    return named is not None and named.trace == f"{current.trace_id:032x}"


def _place(kept: str | None) -> SpanContext | None:
    from opentelemetry.trace import SpanContext, TraceFlags

    found = place(kept)
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found)
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))


def _under(place: SpanContext | None) -> Context | None:
    """Return the context of a span below this position. None means below the current span."""
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return None if place is None else set_span_in_context(NonRecordingSpan(place), Context())


# --- spans


@contextmanager
def _open(
    name: str, kind: str, attributes: Mapping[str, Any], under: Context | None = None, links: Sequence[Link] = ()
) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind

    assert tracer is not None  # noqa: S101 - only asked for where somebody traces
    with tracer.start_as_current_span(
        name[:LONGEST_NAME],
        context=under,
        kind=SpanKind[kind],
        attributes=_plain(attributes),
        links=links,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield span
        except Exception as error:
            failed(span, type(error).__name__)
            raise


def _plain(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known attributes, with strings shortened."""
    known = ((name, value) for name, value in attributes.items() if value is not None)
    return {name: value[:LONGEST_VALUE] if isinstance(value, str) else value for name, value in known}


def failed(span: Span, error_type: str) -> None:
    """Mark a span as failed. The error message stays in the database, because it can quote secrets."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error_type[:LONGEST_VALUE])
    span.set_status(Status(StatusCode.ERROR))


def producing(
    what: str, name: str, trace: str | None, **attributes: Any
) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """Open a span around the creation of work for workers. Stored positions (`carried`) then continue from it."""
    if tracer is None:
        return _NOTHING
    current = _current()
    under = None if current is not None and _goes_on(trace, current) else _under(_place(trace))
    return _open(f"{what} {name}", "PRODUCER", _messaging(what, "send") | attributes, under)


class Enqueuing:
    """A span around an enqueue: its jobs, and the keys that they get."""

    def __init__(self, jobs: Sequence[NewJob], span: Span) -> None:
        self.jobs = [job._replace(trace_id=carried(job.trace_id)) for job in jobs]
        self._span = span

    def made(self, keys: Sequence[int]) -> None:
        if len(keys) == 1:
            self._span.set_attribute("messaging.message.id", ids.public(JOB.prefix, keys[0]))


@contextmanager
def enqueuing(jobs: Sequence[NewJob]) -> Iterator[Enqueuing]:
    """Open a span around an enqueue, while tracing is on. All jobs continue from this span."""
    first, count = jobs[0], len(jobs)
    about = {
        "messaging.destination.name": first.queue,
        "messaging.batch.message_count": count if count > 1 else None,
        "messaging.message.conversation_id": first.correlation_id,
        "keptwork.job.kind": first.kind,
        "keptwork.tenant.id": first.tenant_id,
    }
    with producing("enqueue", first.kind, first.trace_id, **about) as span:
        assert span is not None  # noqa: S101 - somebody traces
        yield Enqueuing(jobs, span)


def claimed(jobs: Sequence[Job], worker: int, seconds: float) -> None:
    """Record a claim that took this long. Its span belongs to no job's trace and is linked to each."""
    from opentelemetry.context import Context
    from opentelemetry.trace import SpanKind

    assert tracer is not None  # noqa: S101 - only asked for where somebody traces
    ended = time.time_ns()
    about = {"messaging.batch.message_count": len(jobs), "messaging.client.id": ids.public(WORKER.prefix, worker)}
    span = tracer.start_span(
        "claim",
        context=Context(),
        kind=SpanKind.CLIENT,
        attributes=_messaging("claim", "receive") | about,
        links=[link for job in jobs[:MOST_LINKS] for link in _links(_place(job.trace_id))],
        start_time=ended - int(seconds * 1e9),
    )
    span.end(ended)
    for job in jobs:
        _claims[job.id, job.epoch] = span.get_span_context()
    for forgotten in list(_claims)[: max(0, len(_claims) - MOST_CLAIMS)]:
        del _claims[forgotten]


def running(job: Job) -> AbstractContextManager[Span]:
    """Open a span around the handler of a job, in the trace of its enqueue, while tracing is on.

    By convention, the span is linked to the span that created the job. Because it concerns one job, that span is its
    parent too.
    """
    made, flow = _place(job.trace_id), flow_of(job)
    about = {
        "messaging.destination.name": job.queue,
        "messaging.message.id": job.public_id,
        "messaging.message.conversation_id": job.correlation_id,
        "messaging.client.id": None if job.owner is None else ids.public(WORKER.prefix, job.owner),
        "keptwork.job.kind": job.kind,
        "keptwork.job.attempt": job.attempts,
        "keptwork.tenant.id": job.tenant_id,
        "keptwork.flow.id": flow.get("flow"),
        "keptwork.step.name": flow.get("step"),
    }
    links = [link for place in (made, _claims.pop((job.id, job.epoch), None)) for link in _links(place)]
    return _open(f"run {job.kind}", "CONSUMER", _messaging("run", "process") | about, _under(made), links)


def step(name: str) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """Open a span around a step of a handler."""
    return _NOTHING if tracer is None else _open(f"step {name}", "INTERNAL", {"keptwork.step.name": name})


def tool(name: str) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """Open a span around a program."""
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    return _NOTHING if tracer is None else _open(f"execute_tool {name}", "INTERNAL", about)


def chat(provider: str, model: str, max_tokens: int) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """Open a span around a model request."""
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": max_tokens,
    }
    return _NOTHING if tracer is None else _open(f"chat {model}", "CLIENT", about)


def answered(span: Span | None, answer: Answer) -> None:
    """Record the usage of a model's answer, but not its text."""
    usage = answer.usage
    noted(
        span,
        gen_ai__response__model=answer.model,
        gen_ai__response__id=answer.request_id or None,
        gen_ai__response__finish_reasons=[answer.stop.value],
        gen_ai__usage__input_tokens=usage.input + usage.cache_read + usage.cache_write,
        gen_ai__usage__output_tokens=usage.output,
        gen_ai__usage__cache_read__input_tokens=usage.cache_read or None,
        gen_ai__usage__cache_creation__input_tokens=usage.cache_write or None,
    )


def request(method: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
    """Open a span around an HTTP request, in the trace that its caller gave, while tracing is on."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    told = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    under = TraceContextTextMapPropagator().extract(told, Context())
    return _open(method, "SERVER", {"http.request.method": method, "url.scheme": "http"}, under)


def noted(span: Span | None, **attributes: Any) -> None:
    """Add attributes to a span. `__` in a name stands for a dot."""
    if span is not None:
        span.set_attributes(_plain({name.replace("__", "."): value for name, value in attributes.items()}))


def flow_of(job: Job) -> dict[str, str]:
    """Return the flow and step of a job. Return nothing for other jobs, or if the payload is damaged."""
    if job.step_id is None:
        return {}
    try:
        said = json.loads(job.payload)
    except (ValueError, RecursionError):
        return {}
    known = said if isinstance(said, dict) else {}
    return {name: known[name] for name in ("flow", "step") if isinstance(known.get(name), str)}


def _links(place: SpanContext | None) -> list[Link]:
    from opentelemetry.trace import Link

    return [] if place is None else [Link(place)]


def _messaging(name: str, type: str) -> dict[str, Any]:
    return {"messaging.system": SYSTEM, "messaging.operation.name": name, "messaging.operation.type": type}
