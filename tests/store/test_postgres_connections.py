"""Connections that go from hand to hand: none is lost, whoever leaves, fails or waits too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from keptwork.store.postgres.connections import MOST_CONNECTIONS, Connections, Session


@pytest.fixture
async def connections(postgres_url: str) -> AsyncIterator[Connections]:
    pool = asyncpg.create_pool(postgres_url, min_size=0, max_size=MOST_CONNECTIONS, connection_class=Session)
    made = Connections(await pool)
    yield made
    await made.close()


async def asked(connections: Connections) -> int:
    connection = await connections.acquired()
    found: int = await connection.fetchval("SELECT pg_backend_pid()")
    await connections.put_back(connection)
    return found


async def all_of_them(connections: Connections) -> list[asyncpg.Connection]:
    return [await connections.acquired() for _ in range(MOST_CONNECTIONS)]


async def test_many_more_than_there_are_connections_are_all_served(connections: Connections) -> None:
    served = await asyncio.gather(*(asked(connections) for _ in range(20 * MOST_CONNECTIONS)))
    assert len(served) == 20 * MOST_CONNECTIONS
    assert len(set(served)) <= MOST_CONNECTIONS


async def test_what_is_given_back_goes_to_whoever_waits_longest(connections: Connections) -> None:
    lent = await all_of_them(connections)
    waiting = [asyncio.ensure_future(connections.acquired()) for _ in range(2)]
    await asyncio.sleep(0)
    await connections.put_back(lent[3])
    assert await waiting[0] is lent[3]
    assert not waiting[1].done()
    await connections.put_back(lent[4])
    assert await waiting[1] is lent[4]
    for one in lent:
        await connections.put_back(one)


async def test_one_who_leaves_at_the_moment_it_is_served_passes_it_on(connections: Connections) -> None:
    lent = await all_of_them(connections)
    leaves, stays = (asyncio.ensure_future(connections.acquired()) for _ in range(2))
    await asyncio.sleep(0)
    await connections.put_back(lent[0])
    leaves.cancel()
    assert await asyncio.wait_for(stays, 60) is lent[0]
    for one in lent:
        await connections.put_back(one)


async def test_one_that_broke_is_replaced_for_whoever_waits(connections: Connections) -> None:
    lent = await all_of_them(connections)
    waits = asyncio.ensure_future(connections.acquired())
    await asyncio.sleep(0)
    lent[0].terminate()
    await connections.put_back(lent[0])
    fresh = await asyncio.wait_for(waits, 60)
    assert await fresh.fetchval("SELECT 1") == 1
    for one in (fresh, *lent[1:]):
        await connections.put_back(one)


async def test_nobody_waits_for_ever(connections: Connections, monkeypatch: pytest.MonkeyPatch) -> None:
    lent = await all_of_them(connections)
    monkeypatch.setenv("KEPTWORK_CONNECT_TIMEOUT", "0.05")
    with pytest.raises(TimeoutError):
        await connections.acquired()
    for one in lent:
        await connections.put_back(one)
    assert await asked(connections) > 0
