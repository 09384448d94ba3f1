"""The typed client against a running server, on both stores."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from keptwork import errors
from keptwork.client import AsyncClient, Client, Patience
from keptwork.http.app import described
from tests.client.odd_server import losing_proxy
from tests.client.serving import Served
from tools.client.operations import operations

pytestmark = pytest.mark.acceptance

QUICK = Patience(first_pause=0.02, longest_pause=0.2, tries=8)


@pytest.fixture
async def client(server: Served, key: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.address, key, patience=QUICK) as opened:
        yield opened


@pytest.fixture
def plain(server: Served, key: str) -> Iterator[Client]:
    with Client(server.address, key, patience=QUICK) as opened:
        yield opened


async def test_a_job_is_enqueued_found_cancelled_and_run_again(client: AsyncClient) -> None:
    made = await client.jobs.enqueue(kind="fetch", payload={"url": "…"}, priority=5, key="order-17")
    assert made["created"]
    again = await client.jobs.enqueue(kind="fetch", payload={"url": "…"}, priority=5, key="order-17")
    assert (again["created"], again["job"]["id"]) == (False, made["job"]["id"])
    id = made["job"]["id"]
    shown = await client.jobs.show(id)
    assert (shown["payload"], shown["priority"], shown["state"]) == ({"url": "…"}, 5, "queued")
    assert (await client.why.explain(id))["reasons"]
    ended = await client.jobs.cancel(id, reason="no longer wanted")
    assert (ended["outcome"], ended["job"]["reason"]) == ("cancelled", "no longer wanted")
    new = (await client.jobs.retry(id))["new"]
    assert (await client.jobs.show(new))["redriven_from"] == id
    counted = await client.jobs.cancel_many(filter={"state": ["queued"]}, dry_run=True)
    assert counted["count"] == 1


async def test_a_list_is_read_to_its_end_however_many_pages_it_has(client: AsyncClient) -> None:
    ids = [(await client.jobs.enqueue(kind="fetch", queue=f"q{n % 2}"))["job"]["id"] for n in range(7)]
    page = await client.jobs.list(limit=3)
    assert [one["id"] for one in page["jobs"]] == ids[:3:-1]
    assert [one["id"] async for one in client.jobs.all(limit=3)] == ids[::-1]
    assert [one["id"] async for one in client.jobs.all(limit=2, oldest_first=True, after=None)] == ids
    assert [one["id"] async for one in client.jobs.all(queue="q1", state=["queued", "running"])] == ids[5::-2]
    assert [one["entity_id"] async for one in client.events.all(limit=2, type="job_enqueued")] == ids
    with pytest.raises(errors.BadCursor):
        await client.jobs.list(after="nonsense")


async def test_what_the_server_refuses_is_raised_as_what_it_is(client: AsyncClient, server: Served) -> None:
    id = (await client.jobs.enqueue(kind="fetch"))["job"]["id"]
    await client.jobs.cancel(id)
    with pytest.raises(errors.InvalidTransition, match="cannot cancel") as moved:
        await client.jobs.cancel(id)
    assert (moved.value.from_state, moved.value.allowed) == ("cancelled", ())
    with pytest.raises(errors.NotFound):
        await client.jobs.show("job_17")
    await client.signals.send(name="paid", idempotency_key="one")
    with pytest.raises(errors.KeyReused):
        await client.signals.send(name="other", idempotency_key="one")
    with pytest.raises(errors.InvalidRequest):
        await client.jobs.enqueue(kind="fetch", max_attempts=0)


async def test_a_job_whose_enqueueing_lost_its_answer_is_there_once(server: Served, key: str) -> None:
    with losing_proxy(server.port) as proxy:
        async with AsyncClient(proxy.address, key, patience=QUICK) as client:
            proxy.to_lose = 2
            made = await client.jobs.enqueue(kind="fetch")
            assert proxy.lost == 2
            assert [one["id"] async for one in client.jobs.all()] == [made["job"]["id"]]


async def test_waiting_ends_with_the_job_or_with_the_time(client: AsyncClient, server: Served) -> None:
    id = (await client.jobs.enqueue(kind="fetch"))["job"]["id"]
    with pytest.raises(errors.StillUnfinished, match=f"{id} is still queued after 200ms"):
        await client.jobs.wait(id, timeout="200ms")
    waiting = asyncio.create_task(client.jobs.wait(id, timeout="30s"))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    await client.jobs.cancel(id)
    assert (await waiting)["state"] == "cancelled"
    assert (await client.jobs.wait(id))["state"] == "cancelled"


def test_a_stream_goes_on_when_the_server_is_started_again_without_gap_or_repeat(
    plain: Client, server: Served, key: str
) -> None:
    first = plain.jobs.enqueue(kind="fetch")["job"]["id"]
    start = plain.events.list()["events"][-1]["cursor"]
    made: list[str] = []
    told: list[str] = []

    def follow() -> None:
        with Client(server.address, key, patience=QUICK) as follower:
            for event in follower.events.follow(entity="job", after=start):
                told.append(event["entity_id"])
                if len(told) == 60:
                    return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(60):
        if number == 30:
            server.stop(ENDED[server.url.partition(":")[0]])
            server.start()
        made.append(plain.jobs.enqueue(kind="fetch", payload={"n": number})["job"]["id"])
    thread.join(60)
    assert not thread.is_alive()
    assert told == made
    assert first not in told


ENDED = {"sqlite": signal.SIGTERM, "postgresql": signal.SIGKILL}
"""One is asked to end, the other killed."""


async def test_a_stream_that_is_cut_before_its_first_event_misses_none(server: Served, key: str) -> None:
    with losing_proxy(server.port) as proxy:
        async with (
            AsyncClient(proxy.address, key, patience=QUICK) as client,
            aclosing(client.events.follow()) as events,
        ):
            coming = asyncio.ensure_future(anext(events))
            await asyncio.to_thread(until, lambda: b"retry:" in proxy.passed_on)
            proxy.refusing = True
            proxy.cut()
            async with AsyncClient(server.address, key) as other:
                made = await other.jobs.enqueue(kind="fetch")
            proxy.refusing = False
            assert (await coming)["entity_id"] == made["job"]["id"]


def until(so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not so():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_ordinary_code_has_the_same_calls(plain: Client, server: Served, key: str) -> None:
    ids = [plain.jobs.enqueue(kind="fetch", payload={"n": n})["job"]["id"] for n in range(5)]
    assert [one["id"] for one in plain.jobs.all(limit=2)] == ids[::-1]
    plain.jobs.cancel(ids[0])
    assert plain.jobs.wait(ids[0], timeout="10s")["state"] == "cancelled"
    with pytest.raises(errors.StillUnfinished):
        plain.jobs.wait(ids[1], timeout=0.1)
    with pytest.raises(errors.NotFound):
        plain.jobs.show("job_17")
    assert next(iter(plain.jobs.all(limit=1)))["id"] == ids[-1]
    assert plain.health.healthz() == {"status": "ok"}
    assert b"keptwork_" in plain.health.metrics()
    assert key not in repr(plain) + repr(plain.wire)


async def test_ordinary_code_may_run_inside_an_event_loop(server: Served, key: str) -> None:
    with Client(server.address, key) as plain:
        assert plain.queues.list() == {"queues": []}


def test_a_client_goes_on_in_a_forked_process(plain: Client) -> None:
    made = plain.jobs.enqueue(kind="fetch")["job"]["id"]
    child = os.fork()
    if child == 0:
        found = plain.jobs.show(made)
        os._exit(0 if found["id"] == made else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert plain.jobs.show(made)["id"] == made


def surface(client: type[Any]) -> dict[str, set[str]]:
    """The methods of a client, by tag."""
    made = client("http://127.0.0.1:9", "kw_nobody")
    tags = {tag: value for tag, value in vars(made).items() if tag != "wire"}
    return {
        tag: {name for name, _ in inspect.getmembers(value, callable) if name[0] != "_"} for tag, value in tags.items()
    }


@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_every_operation_of_the_document_is_a_method_and_the_other_way_round(kind: type[Any]) -> None:
    expected: dict[str, set[str]] = {"jobs": {"wait"}}
    for one in operations(described()):
        expected.setdefault(one.tag, set()).update(one.methods)
    assert surface(kind) == expected
