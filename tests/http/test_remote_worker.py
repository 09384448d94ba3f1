"""A worker over HTTP with the handlers of an application: what they can do with a database, they can do without."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any

import httpx
import pytest

from keptwork import Cancel, Keptwork, PermanentError, Snooze
from keptwork.core import ids
from keptwork.errors import BadInput, NeedsDatabase, ServerRefuses, WorkerTerminated
from keptwork.flows import commands as flows
from keptwork.flows.transaction import Actor
from keptwork.handles_flow import flow_file
from keptwork.store import Store
from keptwork.workers import commands as workers
from tests.http.conftest import OURS, Running
from tests.http.test_workers import until

pytestmark = pytest.mark.acceptance

app = Keptwork()
seen: list[Any] = []
tries: dict[str, int] = {}


@app.job()
async def greet(ctx: Any, name: str) -> str:
    return f"Hello {name}"


@app.job()
def plainly(ctx: Any, name: str) -> str:
    page = ctx.step("get", lambda: name.upper())
    ctx.progress(0.5, "half")
    return str(page)


@app.job(isolation="process")
def apart(ctx: Any, name: str) -> str:
    return str(ctx.step("get", str.upper, name))


@app.job(backoff="10ms")
async def stumbling(ctx: Any, name: str) -> list[str]:
    async def charge() -> str:
        seen.append(("charge", ctx.attempt))
        return "x" * 20_000 if name == "large" else "charged"

    kept = await ctx.step("charge", charge)
    if ctx.attempt == 1:
        raise OSError("no route")
    return [kept[:7], str(ctx.attempt), str(len(kept))]


@app.job()
async def hopeless(ctx: Any) -> None:
    raise PermanentError("never")


@app.job(timeout="50ms", max_attempts=1)
async def slow(ctx: Any) -> None:
    await asyncio.sleep(5)


@app.job()
async def dozing(ctx: Any) -> Any:
    seen.append("dozed")
    return "awake" if seen.count("dozed") > 1 else Snooze("10ms")


@app.job()
async def sleeping(ctx: Any) -> str:
    await ctx.sleep("20ms")
    return "rested"


@app.job()
async def unwanted(ctx: Any) -> Any:
    return Cancel("not wanted")


@app.job()
async def keeping(ctx: Any) -> str:
    await ctx.keep("notes.txt", "hello")
    return "kept"


@app.job()
async def spawning(ctx: Any) -> None:
    await ctx.spawn(greet, name="a child")


@app.job()
async def enqueueing(ctx: Any) -> None:
    await greet.enqueue(name="another")


@app.job()
async def great(ctx: Any) -> str:
    return "x" * 3_000_000


@app.job()
async def waiting(ctx: Any) -> str:
    seen.append("began")
    while not ctx.cancel_requested:  # noqa: ASYNC110 - that is all a handler can look at
        await asyncio.sleep(0.01)
    return "never mind"


@app.job(breaker="shop")
async def behind(ctx: Any) -> None:
    """Needs a breaker."""


def publish(ctx: Any, notes: str) -> dict[str, Any]:
    return {"published": ctx.step("publish", notes.upper)}


def stumble(notes: str) -> None:
    raise OSError(notes)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def work(running: Running, **more: Any) -> int:
    return asyncio.run(app.work(server=running.address, key=OURS, until_idle=True, **more))


def enqueued(client: httpx.Client, kind: str, **arguments: Any) -> str:
    asked = {"kind": kind, "payload": arguments, "max_attempts": 3}
    return str(client.post("/api/jobs", json=asked).raise_for_status().json()["job"]["id"])


def worked(client: httpx.Client, running: Running, id: str) -> dict[str, Any]:
    """The job, once it has ended; what is due in a moment is waited for."""
    last = time.monotonic() + 20
    while True:
        work(running)
        job: dict[str, Any] = client.get(f"/api/jobs/{id}").json()
        if job["completed_at"] is not None:
            return job
        assert time.monotonic() < last, job


@pytest.mark.parametrize(
    ("kind", "arguments", "state", "result"),
    [
        ("greet", {"name": "Ada"}, "succeeded", "Hello Ada"),
        ("plainly", {"name": "Ada"}, "succeeded", "ADA"),
        ("apart", {"name": "Ada"}, "succeeded", "ADA"),
        ("stumbling", {"name": "small"}, "succeeded", ["charged", "2", "7"]),
        ("stumbling", {"name": "large"}, "succeeded", ["xxxxxxx", "2", "20000"]),
        ("dozing", {}, "succeeded", "awake"),
        ("sleeping", {}, "succeeded", "rested"),
        ("keeping", {}, "succeeded", "kept"),
        ("unwanted", {}, "cancelled", None),
        ("hopeless", {}, "failed", None),
        ("greet", {"nobody": 1}, "dead_lettered", None),
    ],
)
def test_handlers_do_over_http_what_they_do_with_a_database(
    client: httpx.Client, running: Running, kind: str, arguments: dict[str, Any], state: str, result: Any
) -> None:
    job = worked(client, running, enqueued(client, kind, **arguments))
    assert (job["state"], job["result"]) == (state, result), job["error"]
    assert seen.count(("charge", 1)) == (kind == "stumbling")
    assert ("charge", 2) not in seen
    if kind == "plainly":
        assert job["progress"]["fraction"] == 0.5
    if kind == "keeping":
        assert client.get(f"/api/jobs/{job['id']}/artifacts/notes.txt").content == b"hello"


@pytest.mark.parametrize(
    ("kind", "state", "why"),
    [
        ("spawning", "failed", "has no database"),
        ("enqueueing", "failed", "has no database"),
        ("great", "failed", "too many to be sent over HTTP"),
    ],
)
def test_what_needs_a_database_fails_in_one_clear_line(
    client: httpx.Client, running: Running, kind: str, state: str, why: str
) -> None:
    job = worked(client, running, enqueued(client, kind))
    assert (job["state"], why in job["error"]) == (state, True), job["error"]


def test_a_timeout_counts_as_one(client: httpx.Client, running: Running) -> None:
    id = client.post("/api/jobs", json={"kind": "slow", "max_attempts": 1}).json()["job"]["id"]
    job = worked(client, running, id)
    assert (job["state"], job["reason"]) == ("dead_lettered", "timeout")


def test_kinds_behind_breakers_are_left_to_others(
    client: httpx.Client, running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    id = enqueued(client, "behind")
    assert work(running) == 0
    assert client.get(f"/api/jobs/{id}").json()["state"] == "queued"
    assert "left to workers with the database: behind" in caplog.text


def test_what_such_a_worker_cannot_do_is_refused_at_once(running: Running) -> None:
    with pytest.raises(BadInput, match="neither pauses by itself"):
        work(running, max_memory="1GiB")


def test_a_key_that_is_not_known_ends_the_worker(running: Running) -> None:
    with pytest.raises(ServerRefuses, match="needs a key"):
        asyncio.run(app.work(server=running.address, key="kw_wrong", until_idle=True))


def test_a_refused_verb_names_what_was_asked() -> None:
    assert "cannot lift holds" in str(NeedsDatabase(what="lift holds"))


class Working:
    """A worker over HTTP in a thread of its own, until it is stopped."""

    def __init__(self, running: Running) -> None:
        self.error: BaseException | None = None
        self.settled = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, args=(running,))
        self._thread.start()

    def _run(self, running: Running) -> None:
        try:
            working = app.work(server=running.address, key=OURS, grace="1s")
            self.settled = self._loop.run_until_complete(working)
        except BaseException as error:
            self.error = error
        finally:
            self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(app.stop)

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_waiting_worker_takes_a_job_at_once_and_ends_at_once_when_it_is_stopped(
    client: httpx.Client, running: Running
) -> None:
    working = Working(running)
    try:
        until(lambda: len(running.app.state.claims.room) == 1)
        began = time.monotonic()
        id = enqueued(client, "greet", name="Ada")
        until(lambda: client.get(f"/api/jobs/{id}").json()["state"] == "succeeded")
        assert time.monotonic() - began < 8
        until(lambda: len(running.app.state.claims.room) == 1)
    finally:
        began = time.monotonic()
        working.stop()
        working.join()
    assert time.monotonic() - began < 10
    assert (working.error, working.settled) == (None, 1)
    (row,) = client.get("/api/workers", params={"ended": "true"}).json()["workers"]
    assert (row["state"], row["reason"]) == ("COMPLETED", "drained")


def test_a_job_is_cancelled_under_a_remote_worker(client: httpx.Client, running: Running) -> None:
    working = Working(running)
    try:
        id = enqueued(client, "waiting")
        until(lambda: "began" in seen)
        client.post(f"/api/jobs/{id}/cancel")
        until(lambda: client.get(f"/api/jobs/{id}").json()["state"] == "succeeded")  # it ended by itself, as asked
    finally:
        working.stop()
        working.join()
    assert client.get(f"/api/jobs/{id}").json()["result"] == "never mind"


def test_a_supervisor_ends_a_remote_worker(client: httpx.Client, running: Running) -> None:
    working = Working(running)
    until(lambda: len(running.app.state.claims.room) == 1)
    (row,) = client.get("/api/workers").json()["workers"]
    wish = workers.Wish("ops", "the machine goes")
    running.do(lambda store: workers.terminate(store, running.ours, row["id"], wish))
    working.join()
    assert isinstance(working.error, WorkerTerminated)
    assert "the machine goes" in str(working.error)


FLOW = {
    "name": "release",
    "kind": "workstream",
    "inputs": {"text": {"type": "string"}},
    "steps": [
        {"id": "notes", "call": "tests.http.test_remote_worker:publish", "with": {"notes": "${inputs.text}"}},
        {
            "id": "ship",
            "call": "tests.http.test_remote_worker:publish",
            "with": {"notes": "${notes.published} again"},
            "depends_on": ["notes"],
        },
    ],
}


def test_a_flow_is_carried_out_by_remote_workers_step_by_step(client: httpx.Client, running: Running) -> None:
    async def begin(store: Store) -> str:
        file = flow_file(FLOW)
        return (
            await flows.start(
                store, file.flow, {"text": "hi"}, tenant_id=running.ours, library=file.library, actor=Actor("us")
            )
        ).public_id

    flow = running.do(begin)
    work(running)
    work(running)
    events = client.get("/api/events", params={"correlation_id": flow, "limit": 100}).json()["events"]
    told = [(one["entity"], one["trigger"]) for one in events if one["entity"].startswith("workstream")]
    assert ("workstream", "all_steps_succeed") in told, told
    assert told.count(("workstream-step", "success")) == 2
    assert ("workstream", "start_execution") in told
    output = running.do(lambda store: store.outputs((ids.key_of(flow) or ("", 0))[1], ["ship"]))
    assert json.loads(output[0].output or "") == {"published": "HI AGAIN"}
