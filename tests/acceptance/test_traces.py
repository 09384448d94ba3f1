"""Traces and logs of real processes: a server and a worker, a collector of OTLP, and what they write to stderr."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from keptwork.access import api_keys
from keptwork.store import open_store
from keptwork.store.contract.records import DEFAULT_TENANT
from tests.support import command
from tests.support.collector import Collector, Seen, collecting
from tests.support.dev_server import announced

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{CALLER}-01"
CANARY = "canary-7f3a9c51e2"
PROGRAM = "tests.acceptance.traced_program:app"
ROOT = str(Path(__file__).parents[2])
SERVER, CLIENT, PRODUCER, CONSUMER, INTERNAL = 2, 3, 4, 5, 1


def tour(folder: Path) -> dict[str, str]:
    """The arguments of the job that goes everywhere."""
    return {"secret": CANARY, "file": str(folder / "told")}


async def new_key(url: str) -> str:
    """A key to a database, which is made if there is none."""
    store = await open_store(url)
    try:
        return (await api_keys.create(store, DEFAULT_TENANT, "test", ["read", "write"], by="test")).secret.value
    finally:
        await store.close()


class Pair:
    """A server and a worker on one database."""

    def __init__(self, url: str, folder: Path, **env: str) -> None:
        self.key = asyncio.run(new_key(url))
        (folder / "keptwork.toml").write_text('[models]\nprovider = "offline"\n')
        env = {"PYTHONPATH": f"{command.SOURCE}:{ROOT}", "KEPTWORK_CONFIG": str(folder / "keptwork.toml"), **env}
        self._env, self._url = env, url
        self._errors = folder / "server.log", folder / "worker.log"
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        server = self._started(0, "serve", "--port", "0", "--db", self._url, "--json")
        self._started(1, "work", PROGRAM, "--db", self._url)
        headers = {"Authorization": f"Bearer {self.key}"}
        self.client = httpx.Client(base_url=announced(server)["address"], headers=headers, timeout=30)

    def _started(self, which: int, *arguments: str) -> subprocess.Popen[str]:
        with self._errors[which].open("w") as errors:
            self._processes.append(command.start(*arguments, stderr=errors, **self._env))
        return self._processes[-1]

    def posted(self, kind: str, payload: dict[str, Any], **headers: str) -> dict[str, Any]:
        asked = {"kind": kind, "payload": payload, "max_attempts": 1}
        made = self.client.post("/api/jobs", json=asked, headers=headers).raise_for_status()
        job: dict[str, Any] = made.json()["job"]
        return job

    def ended(self, id: str) -> dict[str, Any]:
        ends = time.monotonic() + 30
        while (job := self.client.get(f"/api/jobs/{id}").json())["completed_at"] is None:
            assert time.monotonic() < ends, (job["state"], *(file.read_text() for file in self._errors))
            time.sleep(0.02)
        found: dict[str, Any] = job
        return found

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.communicate(timeout=30)
        self.client.close()

    @property
    def written(self) -> tuple[str, str]:
        """What server and worker wrote to stderr."""
        server, worker = (file.read_text() for file in self._errors)
        return server, worker


@contextmanager
def pair(url: str, folder: Path, **env: str) -> Iterator[Pair]:
    both = Pair(url, folder, **env)
    try:
        both.start()
        yield both
    finally:
        both.stop()


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as listening:
        yield listening


def named(spans: list[Seen], name: str) -> Seen:
    found = [span for span in spans if span.name == name]
    assert len(found) == 1, (name, sorted(span.name for span in spans))
    return found[0]


def path(spans: list[Seen], leaf: Seen) -> list[str]:
    """The names from a span up to the caller that named the trace."""
    by_id, names = {span.span_id: span for span in spans}, []
    while leaf.span_id:
        names.append(leaf.name)
        if leaf.parent_id not in by_id:
            return [*names, leaf.parent_id]
        leaf = by_id[leaf.parent_id]
    return names


def test_a_trace_crosses_request_queue_worker_step_tool_and_model(
    database_url: str, tmp_path: Path, collector: Collector
) -> None:
    with pair(database_url, tmp_path, KEPTWORK_LOG="json", **collector.environment) as both:
        job = both.posted("tour", tour(tmp_path), traceparent=HEADER)
        assert job["trace_id"] == TRACE
        done = both.ended(job["id"])
        assert done["state"] == "succeeded", done["error"]
        spans = collector.wait(lambda seen: {"chat offline-haiku", "execute_tool env"} <= {one.name for one in seen})
        agent = both.ended(done["result"]["agent"])
        assert both.client.get(f"/nowhere/{CANARY}?key={CANARY}").status_code == 404
    spans = collector.spans
    upwards = ["run tour", "enqueue tour", "POST /api/jobs", CALLER]
    assert path(spans, named(spans, "step thread")) == ["step thread", *upwards]
    model = named(spans, "chat offline-haiku")
    assert path(spans, model) == [model.name, "run keptwork.agent", "start agent", "step agent", *upwards]
    program = named(spans, "execute_tool env")
    assert path(spans, program) == [program.name, "run keptwork.command", "start look", "step flow", *upwards]
    whole = [span for span in spans if span.name != "claim" and not span.name.startswith("GET")]
    assert {span.trace_id for span in whole} == {TRACE}
    assert (tmp_path / "told").read_text() == f"00-{TRACE}-{program.span_id}-01", "a tool can go on with the trace"
    check_conventions(spans, job, agent)
    check_that_nothing_is_given_away(collector, both)


def check_conventions(spans: list[Seen], job: dict[str, Any], agent: dict[str, Any]) -> None:
    request, enqueue, run = (named(spans, name) for name in ("POST /api/jobs", "enqueue tour", "run tour"))
    assert (request.kind, enqueue.kind, run.kind) == (SERVER, PRODUCER, CONSUMER)
    assert (request.service, run.service) == ("keptwork-server", "keptwork-worker")
    assert request.attributes["http.route"] == "/api/jobs"
    assert request.attributes["http.response.status_code"] == 201
    assert enqueue.attributes["messaging.operation.type"] == "send"
    assert run.attributes["messaging.message.id"] == enqueue.attributes["messaging.message.id"] == job["id"]
    assert run.attributes["keptwork.outcome"] == "returned"
    claims = {span.span_id: span for span in spans if span.name == "claim"}
    assert run.links[0] == enqueue.span_id
    assert enqueue.span_id in claims[run.links[1]].links, "its claim is another trace, and both know of each other"
    model = named(spans, "chat offline-haiku")
    assert model.kind == CLIENT
    assert model.attributes["gen_ai.provider.name"] == "offline"
    assert model.attributes["gen_ai.usage.input_tokens"] > 0
    assert model.attributes["gen_ai.usage.output_tokens"] > 0
    assert agent["trace_id"] == TRACE
    step = named(spans, "run keptwork.command")
    assert step.attributes["keptwork.step.name"] == "env"
    assert step.attributes["keptwork.flow.id"].startswith("ws_")
    assert named(spans, "execute_tool env").attributes["process.exit.code"] == 0


def check_that_nothing_is_given_away(collector: Collector, both: Pair) -> None:
    assert collector.raw
    for body in collector.raw:
        assert CANARY.encode() not in body
        assert both.key.encode() not in body
    for text in both.written:
        assert CANARY not in text
        assert both.key not in text


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_of_json_carry_the_ids_also_from_threads_and_processes(database_url: str, tmp_path: Path) -> None:
    """Nobody traces here: trace ids are stored and shown all the same."""
    with pair(database_url, tmp_path, KEPTWORK_LOG="json") as both:
        job = both.posted("tour", tour(tmp_path), traceparent=HEADER)
        apart = both.posted("apart", {}, traceparent=HEADER)
        broken = both.posted("broken", {"secret": "none"}, traceparent=HEADER)
        assert both.ended(job["id"])["result"]["traceparent"] == HEADER
        assert both.ended(apart["id"])["result"] == HEADER
        assert both.ended(broken["id"])["trace_id"] == TRACE
        assert both.client.get("/api/jobs/none?token=kw_canary").status_code == 404
        made = both.ended(both.ended(job["id"])["result"]["agent"])
        assert made["trace_id"] == TRACE, "what a job starts belongs to its trace"
        assert {event["trace_id"] for event in both.ended(job["id"])["events"]} == {TRACE}
    server, worker = (lines_of(text) for text in both.written)
    said = {line["message"]: line for line in worker if line["logger"] == "shop"}
    assert set(said) == {"begun", "in a thread", "in a process", "about to break"}
    for message, id in (("begun", job), ("in a thread", job), ("in a process", apart), ("about to break", broken)):
        line = said[message]
        assert (line["job"], line["trace"], line["tenant"]) == (id["id"], TRACE, 1), message
        assert line["worker"].startswith("w_")
    told = next(line for line in worker if line.get("move") == "dead_letter")
    assert (told["job"], told["level"], told["trace"]) == (broken["id"], "warning", TRACE)
    posts = [line for line in server if line.get("route") == "/api/jobs" and line["method"] == "POST"]
    assert len(posts) == 3
    assert {(line["status"], line["trace"], line["tenant"]) for line in posts} == {(201, TRACE, 1)}
    assert all(line["ms"] > 0 and len(line["request"]) == 32 for line in posts)
    assert not any("kw_" in text for text in both.written), "neither keys nor queries are told"


def test_without_the_sdk_it_says_so_once_and_works(sqlite_url: str, tmp_path: Path) -> None:
    """As on a machine where the extra is not installed."""
    absent = tmp_path / "absent" / "opentelemetry" / "sdk"
    absent.mkdir(parents=True)
    (absent / "__init__.py").write_text("raise ModuleNotFoundError(name='opentelemetry.sdk')")
    env = {"PYTHONPATH": f"{absent.parents[1]}:{command.SOURCE}:{ROOT}", "OTEL_TRACES_EXPORTER": "console"}
    with pair(sqlite_url, tmp_path, **env) as both:
        job = both.posted("tour", tour(tmp_path), traceparent=HEADER)
        assert both.ended(job["id"])["result"]["traceparent"] == HEADER
        assert job["trace_id"] == TRACE
    for text in both.written:
        assert text.count("no traces: opentelemetry.sdk is not installed; pip install 'keptwork[otel]'") == 1
    assert "INFO begun (job_" in both.written[1], "what a handler logs names its job"


def test_a_collector_that_is_gone_holds_up_no_work(sqlite_url: str, tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with pair(sqlite_url, tmp_path, **env) as both:
        job = both.posted("tour", tour(tmp_path), traceparent=HEADER)
        assert both.ended(job["id"])["state"] == "succeeded"
    assert "Failed to export" in both.written[1] or "error" in both.written[1].lower()
