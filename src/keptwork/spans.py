"""The spans of OpenTelemetry: what a job goes through, from the request that enqueues it to the calls it makes.

Only the API is used, and only where somebody traces: until `use` is called nothing of it is imported, `tracer` is none,
and that is all the hot path looks at. Names and attributes follow the semantic conventions (messaging, gen_ai, http).
No span holds what users keep secret: no payload, no result, no argument, no message of an error.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from keptwork import ids, trace_context
from keptwork.lifecycle import JOB, WORKER

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider

    from keptwork.agent.conversation import Answer
    from keptwork.store import Job, NewJob

LONGEST_NAME = 100
LONGEST_VALUE = 200
MOST_LINKS = 128
MOST_CLAIMS = 10_000
"""So many jobs that were claimed and have not begun are remembered by the span of their claim."""

SYSTEM = "keptwork"

tracer: Tracer | None = None
"""None while nobody traces."""

_claims: dict[tuple[int, int], SpanContext] = {}
_NOTHING: AbstractContextManager[None] = nullcontext()


def use(provider: TracerProvider | None) -> None:
    """From here on spans go there; none ends tracing."""
    global tracer
    tracer = None if provider is None else provider.get_tracer(SYSTEM)


def adopt() -> None:
    """Uses the tracer provider that the program around us has set, if it has. One who has not imported OpenTelemetry
    has set none."""
    api = sys.modules.get("opentelemetry.trace")
    if tracer is None and api is not None:
        provider = api.get_tracer_provider()
        if not isinstance(provider, api.ProxyTracerProvider | api.NoOpTracerProvider):
            use(provider)


# --- a place in a trace, as it is kept


def carried(given: str | None) -> str | None:
    """What is to be kept with something that is made now: where the span that is open is, unless another trace was
    named. Without tracing it is what was given, or the place of the request or job that makes it."""
    if tracer is None:
        return given if given is not None else trace_context.ambient.get()
    current = _current()
    if current is None or not _goes_on(given, current):
        return given
    return f"{current.trace_id:032x}-{current.span_id:016x}-{int(current.trace_flags) & 0x03:02x}"


def inherited(jobs: Sequence[NewJob]) -> Sequence[NewJob]:
    """The same for new jobs, where nobody traces."""
    place = trace_context.ambient.get()
    return jobs if place is None else [job if job.trace_id else job._replace(trace_id=place) for job in jobs]


def here() -> tuple[str, str] | None:
    """The ids of the trace and the span that are open."""
    current = None if tracer is None else _current()
    return None if current is None else (f"{current.trace_id:032x}", f"{current.span_id:016x}")


def _current() -> SpanContext | None:
    from opentelemetry.trace import get_current_span

    found = get_current_span().get_span_context()
    return found if found.is_valid else None


def _goes_on(given: str | None, current: SpanContext) -> bool:
    """Whether the open span is in the trace that was named. A name that is no place by the standard stays as it is."""
    if given is None:
        return True
    named = trace_context.place(given)
    return named is not None and named.trace == f"{current.trace_id:032x}"


def _place(kept: str | None) -> SpanContext | None:
    from opentelemetry.trace import SpanContext, TraceFlags

    found = trace_context.place(kept)
    if found is None:
        return None
    trace, span, flags = (int(part, 16) for part in found)
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(flags))


def _under(place: SpanContext | None) -> Context | None:
    """The context of a span below that place; none means below the span that is open."""
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
    """Without what is not known; texts cut to a length."""
    known = ((name, value) for name, value in attributes.items() if value is not None)
    return {name: value[:LONGEST_VALUE] if isinstance(value, str) else value for name, value in known}


def failed(span: Span, error_type: str) -> None:
    """It came to nothing. What the error says stays in the database: it may quote what is secret."""
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error_type[:LONGEST_VALUE])
    span.set_status(Status(StatusCode.ERROR))


def producing(
    what: str, name: str, trace: str | None, **attributes: Any
) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """While something is made that workers will carry out: `carried` is the place they go on from."""
    if tracer is None:
        return _NOTHING
    current = _current()
    under = None if current is not None and _goes_on(trace, current) else _under(_place(trace))
    return _open(f"{what} {name}", "PRODUCER", _messaging(what, "send") | attributes, under)


class Enqueuing:
    """A span over the enqueueing of jobs: what is enqueued in it, and which they have become."""

    def __init__(self, jobs: Sequence[NewJob], span: Span) -> None:
        self.jobs = [job._replace(trace_id=carried(job.trace_id)) for job in jobs]
        self._span = span

    def made(self, keys: Sequence[int]) -> None:
        if len(keys) == 1:
            self._span.set_attribute("messaging.message.id", ids.public(JOB.prefix, keys[0]))


@contextmanager
def enqueuing(jobs: Sequence[NewJob]) -> Iterator[Enqueuing]:
    """Only where somebody traces. All of them go on from one place: they were enqueued by one call."""
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
    """A claim that took so long brought these jobs. It belongs to none of their traces, and is linked to each."""
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
    """While the handler of a job runs, in the trace of whoever enqueued it; only where somebody traces. As the
    conventions have it the span is linked to where the job was made; since it is one job's, that is its parent too."""
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
    """While a step of a handler is done."""
    return _NOTHING if tracer is None else _open(f"step {name}", "INTERNAL", {"keptwork.step.name": name})


def tool(name: str) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """While a program runs."""
    about = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": name}
    return _NOTHING if tracer is None else _open(f"execute_tool {name}", "INTERNAL", about)


def chat(provider: str, model: str, max_tokens: int) -> AbstractContextManager[Span] | AbstractContextManager[None]:
    """While a model is asked."""
    about = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": max_tokens,
    }
    return _NOTHING if tracer is None else _open(f"chat {model}", "CLIENT", about)


def answered(span: Span | None, answer: Answer) -> None:
    """What a model's answer took; not what it says."""
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
    """While a request is answered, in the trace its caller named; only where somebody traces."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    told = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    under = TraceContextTextMapPropagator().extract(told, Context())
    return _open(method, "SERVER", {"http.request.method": method, "url.scheme": "http"}, under)


def noted(span: Span | None, **attributes: Any) -> None:
    """More is known; `__` in a name stands for a dot."""
    if span is not None:
        span.set_attributes(_plain({name.replace("__", "."): value for name, value in attributes.items()}))


def flow_of(job: Job) -> dict[str, str]:
    """Which flow and which of its steps a job carries out; nothing for others, or where somebody has damaged it."""
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
