"""One asynchronous client, several event loops, threads and processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from keptwork.client import AsyncClient, Patience
from tests.client.serving import Served

pytestmark = pytest.mark.acceptance

QUICK = Patience(first_pause=0.02, longest_pause=0.2, tries=8)


@pytest.fixture
def client(server: Served, key: str) -> Iterator[AsyncClient]:
    client = AsyncClient(server.address, key, patience=QUICK)
    yield client
    asyncio.run(client.close())


async def enqueue(client: AsyncClient, number: int) -> str:
    return str((await client.jobs.enqueue(kind="fetch", key=f"order-{number}"))["job"]["id"])


async def listed(client: AsyncClient) -> list[str]:
    return sorted([job["id"] async for job in client.jobs.all()])


def connections(port: int) -> int:
    """Open connections of this process to a port of this host."""
    mine = {os.readlink(one) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()}
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    to_port = [row for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
    return sum(f"socket:[{row[9]}]" in mine for row in to_port)


def from_threads(client: AsyncClient, port: int, times: int) -> list[int]:
    """How many connections there are while each request comes from an event loop of its own."""
    seen = []
    with ThreadPoolExecutor(8) as threads:
        for number, _ in enumerate(threads.map(lambda n: asyncio.run(enqueue(client, n)), range(times))):
            seen.append(connections(port))
            assert number < times
    return seen


def test_requests_from_a_new_event_loop_each_time_keep_connections_flat(client: AsyncClient, server: Served) -> None:
    seen = from_threads(client, server.port, 60)
    assert max(seen[30:]) <= max(seen[:30]) <= 9
    assert len(asyncio.run(listed(client))) == 60


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_thousand_event_loops_in_threads_keep_connections_of_a_client_flat(client: AsyncClient, server: Served) -> None:
    seen = from_threads(client, server.port, 1_000)
    print(f"connections: {min(seen)} to {max(seen)}, {seen[-1]} at the end")
    assert max(seen[500:]) <= max(seen[:500]) <= 9


def test_one_event_loop_after_the_other_asks_and_closing_leaves_no_connection(
    client: AsyncClient, server: Served
) -> None:
    ids = [asyncio.run(enqueue(client, number)) for number in range(3)]
    assert asyncio.run(listed(client)) == sorted(ids)
    asyncio.run(client.close())
    assert connections(server.port) == 0


def test_request_from_another_thread_leaves_those_of_the_first_loop_unharmed(client: AsyncClient) -> None:
    async def at_home() -> list[str]:
        async with client:
            first = await enqueue(client, 0)
            others = [asyncio.to_thread(asyncio.run, enqueue(client, n)) for n in range(1, 9)]
            mine = [enqueue(client, n) for n in range(9, 17)]
            return sorted([first, *await asyncio.gather(*others, *mine)])

    assert asyncio.run(at_home()) == asyncio.run(listed(client))


def test_stream_is_followed_in_a_second_event_loop(client: AsyncClient) -> None:
    async def first_event() -> Any:
        async with aclosing(client.events.follow(entity="job")) as events:
            making = asyncio.create_task(keep_enqueueing())
            event = await anext(events)
            making.cancel()
            return event

    async def keep_enqueueing() -> None:
        for number in range(1_000):
            await enqueue(client, number)
            await asyncio.sleep(0.05)

    asyncio.run(enqueue(client, 0))
    assert asyncio.run(asyncio.wait_for(first_event(), 60))["entity"] == "job"


def test_forked_child_makes_connections_of_its_own(client: AsyncClient) -> None:
    async def parent() -> list[str]:
        async with client:
            first = await enqueue(client, 0)
            if not (child := os.fork()):
                os._exit(0 if asyncio.run(enqueue(client, 1)) != first else 1)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert status == 0
            await asyncio.gather(*[enqueue(client, number) for number in range(2, 7)])
            return await listed(client)

    assert len(asyncio.run(parent())) == 7
