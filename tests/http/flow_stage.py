"""Flows for tests of the API, and a worker beside the server that carries them out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from keptwork import Keptwork
from keptwork.core.lifecycles import BREAKER, decide, insist
from keptwork.flows import start
from keptwork.flows.definition import Flow
from keptwork.jobs import breakers
from keptwork.jobs.breaker import Breaker
from keptwork.store import Store
from keptwork.store.contract.store import Transaction
from tests.http.conftest import Running

HERE = "tests.http.flow_stage"

SIGNED: dict[str, Any] = {"name": "signed", "steps": [{"id": "sign", "approval": {"question": "Ship it?"}}]}
TWICE: dict[str, Any] = {"name": "twice", "steps": [{"id": name, "approval": {}} for name in ("first", "second")]}
GRAPH: dict[str, Any] = {
    "name": "graph",
    "steps": [{"id": "sign", "approval": {}}, {"id": "after", "approval": {}, "depends_on": ["sign"]}],
}
"""Steps that wait for people: what a server without a worker can move."""

RELEASE: dict[str, Any] = {
    "name": "release",
    "kind": "run",
    "inputs": {"version": {"type": "string", "required": True}},
    "steps": [
        {"id": "build", "call": f"{HERE}:build", "with": {"version": "${inputs.version}"}},
        {"id": "sign", "approval": {"question": "Ship ${build.version}?"}},
        {"id": "ship", "call": f"{HERE}:ship", "with": {"version": "${build.version}"}},
    ],
}


def build(version: str) -> dict[str, str]:
    return {"version": version}


def ship(version: str) -> dict[str, str]:
    return {"shipped": version}


def fail(times: int) -> None:
    raise ValueError(f"it fails, {times}")


def kept(running: Running, definition: dict[str, Any]) -> str:
    """The id of a template, kept as whoever has the database may keep it."""
    flow = Flow.model_validate(definition)
    found = running.do(lambda store: start.put(store, running.ours, flow))
    return found.public_id


def run(client: httpx.Client, definition: dict[str, Any] = SIGNED, at: str = "/api/runs", **more: object) -> Any:
    return _made(client.post(at, json={"definition": definition, **more}))


def workstream(client: httpx.Client, definition: dict[str, Any] = GRAPH, **more: object) -> Any:
    return _made(client.post("/api/workstreams", json={"definition": definition, **more}))


def _made(answer: httpx.Response) -> Any:
    assert answer.status_code == 201, answer.text
    return answer.json()


def failed_workstream(client: httpx.Client) -> str:
    """One whose first step failed, because somebody said no."""
    id = workstream(client)["id"]
    (question,) = client.get(f"/api/workstreams/{id}").json()["questions"]
    assert client.post(f"/api/approvals/{question['id']}/reject", json={"reason": "no"}).status_code == 200
    return str(id)


def step_named(client: httpx.Client, flow: str, name: str) -> Any:
    steps = client.get("/api/steps", params={"flow": flow}).json()["steps"]
    return next(one for one in steps if one["name"] == name)


def open_breaker(running: Running, name: str = "tool:aider", tenant_id: int | None = None) -> None:
    """As five failures in a row would leave it."""
    running.do(lambda store: trip(store, running.ours if tenant_id is None else tenant_id, name))


async def trip(store: Store, tenant_id: int, name: str) -> None:
    """The same for whoever has the database."""

    async def tripped(tx: Transaction) -> None:
        row = await breakers.ensure(tx, tenant_id, Breaker(name))
        counted = {"failures": 5, "error": "exit code 1"}
        await tx.apply([insist(decide(BREAKER, {**row, **counted}, "trip", values=counted, actor="test"))])

    await store.atomically(tripped)


def beside(running: Running) -> str:
    """A queue of this test alone: others have left jobs in the same database that no worker here knows."""
    return f"beside-{running.ours}"


@contextmanager
def worker_beside(running: Running, declare: Callable[[Keptwork], object] = lambda app: None) -> Iterator[None]:
    """A worker of the same database, in a thread of its own, until the block ends."""
    app, begun = Keptwork(running.url), threading.Event()
    declare(app)
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        loops.append(asyncio.get_running_loop())
        async with app:
            begun.set()
            await app.work(queues=[beside(running)], concurrency=4)

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    assert begun.wait(60)
    try:
        yield
    finally:
        loops[0].call_soon_threadsafe(app.stop)
        thread.join(60)
        assert not thread.is_alive()
