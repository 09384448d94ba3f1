"""Spans of an application inside a program that traces: OpenTelemetry's own SDK, keeping what it is given."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from keptwork import Keptwork, Snooze
from keptwork.observability import logs, otel, spans
from keptwork.outcomes import TransientError
from keptwork.store import Job
from keptwork.store.contract.records import JOB_COLUMNS
from tests.support import command

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADER = f"00-{TRACE}-00f067aa0ba902b7-01"
CANARY = "canary-7f3a9c51e2"


@pytest.fixture
def seen() -> Iterator[InMemorySpanExporter]:
    """What was exported; nobody traces any more when the test is over."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans.use(provider)
    yield exporter
    spans.use(None)
    provider.shutdown()


def of_name(seen: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in seen.get_finished_spans() if span.name == name]


def one(seen: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = of_name(seen, name)
    return found


def place(span: ReadableSpan) -> tuple[str, int]:
    """The trace and the id of a span."""
    assert span.context is not None
    return f"{span.context.trace_id:032x}", span.context.span_id


def parent(seen: InMemorySpanExporter, span: ReadableSpan) -> str | None:
    by_id = {place(other)[1]: other.name for other in seen.get_finished_spans()}
    return None if span.parent is None else by_id.get(span.parent.span_id)


async def test_children_run_below_the_run_that_spawned_them(database_url: str, seen: InMemorySpanExporter) -> None:
    app = Keptwork(database_url)

    @app.job()
    async def child(ctx: Any) -> None: ...

    @app.job(name="parent")
    async def spawning(ctx: Any) -> None:
        await ctx.join(await ctx.spawn(child))

    async with app:
        await spawning.enqueue(_trace_id=HEADER)
        await app.work(until_idle=True, concurrency=1)
    first, _ = of_name(seen, "run parent")
    run = one(seen, "run child")
    assert run.parent is not None
    assert run.parent.span_id == place(first)[1]
    traces = {place(span)[0] for span in seen.get_finished_spans() if span.name != "claim"}
    assert traces == {TRACE}
    outcomes = [(span.attributes or {})["keptwork.outcome"] for span in of_name(seen, "run parent")]
    assert outcomes == ["suspended", "returned"]
    assert all(span.status.is_unset for span in of_name(seen, "run parent")), "to wait is no error"


async def test_the_id_of_a_trace_alone_says_not_where_to_go_on(sqlite_url: str, seen: InMemorySpanExporter) -> None:
    """What was kept once, and why it is more today: the run is in a trace of its own."""
    app = Keptwork(sqlite_url)
    noop = app.job(name="noop")(lambda ctx: None)
    async with app:
        await noop.enqueue(_trace_id=TRACE)
        await app.work(until_idle=True)
    run = one(seen, "run noop")
    assert run.parent is None
    assert place(run)[0] != TRACE


async def test_every_attempt_is_a_span_below_the_enqueueing(sqlite_url: str, seen: InMemorySpanExporter) -> None:
    app = Keptwork(sqlite_url)

    @app.job(max_attempts=3, backoff=0.001)
    def shaky(ctx: Any) -> Any:
        if ctx.attempt == 1:
            raise TransientError("no route")
        return Snooze("0s") if ctx.fencing_token < 2 else "done"

    async with app:
        await shaky.enqueue()
        for _ in range(3):
            await app.work(until_idle=True)
    runs = of_name(seen, "run shaky")
    assert {parent(seen, run) for run in runs} == {"enqueue shaky"}
    told = [((run.attributes or {})["keptwork.outcome"], (run.attributes or {}).get("error.type")) for run in runs]
    assert told == [("raised", "TransientError"), ("snoozed", None), ("returned", None)]
    assert [run.status.is_ok or run.status.is_unset for run in runs] == [False, True, True]


def given_away(found: tuple[ReadableSpan, ...]) -> list[str]:
    """The names of spans that hold what is secret."""
    return [span.name for span in found if CANARY in span.to_json()]


async def test_no_span_holds_a_payload_a_result_or_what_an_error_says(
    sqlite_url: str, seen: InMemorySpanExporter
) -> None:
    app = Keptwork(sqlite_url)

    @app.job(max_attempts=1)
    async def secretive(ctx: Any, secret: str) -> str:
        await ctx.step("say", lambda: secret)
        raise RuntimeError(secret)

    async with app:
        await secretive.enqueue(secret=CANARY)
        await app.work(until_idle=True)
    assert one(seen, "run secretive").status.description is None
    assert one(seen, "step say").attributes == {"keptwork.step.name": "say"}
    assert given_away(seen.get_finished_spans()) == []


async def test_the_search_for_secrets_finds_what_the_usual_way_to_end_a_span_records(
    seen: InMemorySpanExporter,
) -> None:
    """The broken twin: a span that records exceptions, as OpenTelemetry's do if nothing is said."""
    assert spans.tracer is not None
    with pytest.raises(RuntimeError), spans.tracer.start_as_current_span("leaky"):
        raise RuntimeError(CANARY)
    assert given_away(seen.get_finished_spans()) == ["leaky"]


async def test_the_open_span_of_the_program_is_the_parent(sqlite_url: str, seen: InMemorySpanExporter) -> None:
    app = Keptwork(sqlite_url)
    noop = app.job(name="noop")(lambda ctx: None)
    assert spans.tracer is not None
    async with app:
        with spans.tracer.start_as_current_span("order") as order:
            await noop.enqueue()
            await app.enqueue_many(noop, [{}, {}])
            await noop.enqueue(_trace_id="order-17")
        await app.work(until_idle=True)
    assert {parent(seen, span) for span in of_name(seen, "enqueue noop")} == {"order"}
    counts = [(span.attributes or {}).get("messaging.batch.message_count") for span in of_name(seen, "enqueue noop")]
    assert counts == [None, 2, None]
    runs = [place(span)[0] for span in of_name(seen, "run noop")]
    trace_id = f"{order.get_span_context().trace_id:032x}"
    assert runs.count(trace_id) == 3, "a trace that is none by the standard is left alone"


async def test_a_caller_that_samples_not_is_not_sampled(sqlite_url: str, seen: InMemorySpanExporter) -> None:
    app = Keptwork(sqlite_url)
    noop = app.job(name="noop")(lambda ctx: None)
    async with app:
        await noop.enqueue(_trace_id=HEADER[:-2] + "00")
        await app.work(until_idle=True)
    assert [span.name for span in seen.get_finished_spans()] == ["claim"]


async def test_names_and_values_have_an_end(sqlite_url: str, seen: InMemorySpanExporter) -> None:
    app = Keptwork(sqlite_url)

    @app.job()
    async def long(ctx: Any) -> None:
        await ctx.step("s" * 400, lambda: 1)

    async with app:
        await long.enqueue()
        await app.work(until_idle=True)
    (step,) = [span for span in seen.get_finished_spans() if span.name.startswith("step ")]
    assert len(step.name) == spans.LONGEST_NAME
    assert len(str((step.attributes or {})["keptwork.step.name"])) == spans.LONGEST_VALUE


@pytest.mark.parametrize("payload", ["", "[]", '{"flow": 7}', "[" * 100_000])
async def test_a_payload_that_somebody_damaged_ends_no_worker(payload: str, seen: InMemorySpanExporter) -> None:
    unknown: Any = [None] * len(JOB_COLUMNS)
    job = Job(*unknown)
    job.id, job.step_id, job.payload, job.kind = 1, 1, payload, "keptwork.tool"
    assert spans.flow_of(job) == {}
    with spans.running(job):
        assert logs.about(job)["kind"] == "keptwork.tool"


def test_a_provider_that_the_program_has_set_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    def traces() -> bool:
        spans.adopt()
        return spans.tracer is not None

    assert not traces(), "OpenTelemetry is imported here, and nobody has set it up"
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: TracerProvider(shutdown_on_exit=False))
    assert traces()
    spans.use(None)


PROGRAM = """
import asyncio, json, sys
from keptwork import Keptwork
app = Keptwork("sqlite:///:memory:")

@app.job()
async def noop(ctx):
    await ctx.step("one", lambda: 1)

async def main():
    async with app:
        await noop.enqueue()
        await app.work(until_idle=True)

asyncio.run(main())
print(json.dumps([name for name in sys.modules if name.startswith("opentelemetry")]))
"""


@pytest.mark.acceptance
def test_where_nobody_traces_nothing_of_opentelemetry_is_imported() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=command.environment()
    )
    assert json.loads(done.stdout) == []


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "the protocol grpc"),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER=zipkin"),
    ],
)
def test_what_is_not_known_here_is_said_and_keeps_nobody_from_working(
    env: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with otel.traced("test"):
        assert spans.tracer is None
    assert caplog.messages == [
        f"no traces: {says} is not known here; there are otlp over http/protobuf, console and none"
    ]
