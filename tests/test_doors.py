"""The other doors into the queue as a user of the library meets them: your rows and your jobs commit together."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from keptwork import Keptwork
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.errors import BadInput, NotThere
from keptwork.job import DeclaredJob
from keptwork.store.postgres.connections_server import SESSION_SETTINGS
from tests.support.command import environment
from tests.support.postgres_server import PostgresServer
from tests.worker.scene import row, triggers


@pytest.fixture
async def app(database_url: str) -> AsyncIterator[Keptwork]:
    async with Keptwork(database_url) as opened:
        yield opened
        verdict = await verify.verify(await opened.open())
        assert verdict.clean, verdict.problems


@pytest.fixture
def copy(postgres_server: PostgresServer, migrated_template: str) -> Any:
    url = postgres_server.create_database(template=migrated_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
async def shop(copy: str) -> AsyncIterator[Keptwork]:
    """An application on PostgreSQL."""
    async with Keptwork(copy) as opened:
        yield opened
        verdict = await verify.verify(await opened.open())
        assert verdict.clean, verdict.problems


def declared(app: Keptwork) -> DeclaredJob:
    @app.job(queue="pages", priority=3, max_attempts=2, on_exhausted="fail")
    async def fetch(ctx: Context, url: str) -> str:
        return url

    return fetch


async def test_rows_and_jobs_commit_together(app: Keptwork) -> None:
    fetch = declared(app)
    async with app.transaction() as tx:
        await tx.execute("CREATE TABLE pages (url text)")
        await tx.execute("INSERT INTO pages VALUES ('a'), ('b')")
        for page in await tx.fetch("SELECT url FROM pages"):
            await fetch.enqueue(url=page["url"], _tx=tx)
        await app.enqueue_many(fetch, [{"url": "c"}] * 2, _tx=tx)
    assert await app.work(until_idle=True) == 4


LOOP = """
import asyncio, sys
from keptwork import Keptwork

async def main():
    async with Keptwork(sys.argv[1]) as app:
        @app.job()
        async def ship(ctx, order): ...

        async with app.transaction() as tx:
            await tx.execute("CREATE TABLE IF NOT EXISTS own_orders (id integer PRIMARY KEY)")
        print("ready", flush=True)
        (last,) = (await app_rows(app))
        for number in range(last + 1, 1_000_000):
            async with app.transaction() as tx:
                await tx.execute(f"INSERT INTO own_orders (id) VALUES ({number})")
                await ship.enqueue(order=number, _key=f"order-{number}", _tx=tx)

async def app_rows(app):
    async with app.transaction() as tx:
        return [row["n"] for row in await tx.fetch("SELECT coalesce(max(id), 0) AS n FROM own_orders")]

asyncio.run(main())
"""


@pytest.mark.acceptance
async def test_a_process_killed_at_any_moment_leaves_both_or_none(app: Keptwork, database_url: str) -> None:
    for moment in (0.05, 0.11, 0.17):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", LOOP, database_url, stdout=asyncio.subprocess.PIPE, env=environment()
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        await asyncio.sleep(moment)
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with app.transaction() as tx:
        orders = [row["id"] for row in await tx.fetch("SELECT id FROM own_orders ORDER BY id")]
    jobs = await (await app.open()).jobs(limit=1_000_000, newest_first=False, columns=("key", "payload"))
    assert orders
    assert [json.loads(job["payload"])["order"] for job in jobs] == orders
    assert sorted(job["key"] for job in jobs) == sorted(f"order-{number}" for number in orders)


# --- a connection of the user's own


@pytest.mark.parametrize("own_settings", [None, SESSION_SETTINGS])
@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_a_connection_of_your_own_carries_jobs_at_any_isolation_level(
    shop: Keptwork, copy: str, own_settings: dict[str, str] | None, isolation: str
) -> None:
    fetch = declared(shop)
    connection = await asyncpg.connect(copy, server_settings=own_settings)
    await connection.execute("CREATE TABLE orders (id int)")
    await connection.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    async with connection.transaction(isolation=isolation):
        await connection.execute("INSERT INTO orders VALUES (1)")
        one = await fetch.enqueue(url="a", _tx=connection, _key="k", _run_in="0s", _correlation_id="c")
        many = await shop.enqueue_many(fetch, [{"url": str(number)} for number in range(50)], _tx=connection)
        again = await fetch.enqueue(url="b", _tx=connection, _key="k")
        assert await shop.enqueue_many(fetch, [], _tx=connection) == []
    await connection.close()
    assert again.key == one.key
    found = await row(shop, one)
    assert [found[name] for name in ("queue", "priority", "max_attempts", "on_exhausted")] == ["pages", 3, 2, "fail"]
    assert [json.loads((await row(shop, job))["payload"])["url"] for job in many] == [str(n) for n in range(50)]
    assert await triggers(shop, one) == ["enqueue"]
    assert await shop.work(until_idle=True) == 51


async def test_what_is_rolled_back_on_your_connection_never_was(shop: Keptwork, copy: str) -> None:
    fetch = declared(shop)
    async with asyncpg.create_pool(copy, min_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await fetch.enqueue(url="a", _tx=connection)
        async with connection.transaction():
            await shop.enqueue_many(fetch, [{"url": "b"}], _tx=connection)
        await transaction.rollback()
        async with connection.transaction():
            kept = await fetch.enqueue(url="c", _tx=connection)
    assert [job["id"] for job in await (await shop.open()).jobs()] == [kept.key]


async def test_your_connection_rings_when_it_commits(shop: Keptwork, copy: str) -> None:
    fetch, rung = declared(shop), asyncio.Event()
    stop = (await shop.open()).listen(rung.set)
    await asyncio.wait_for(rung.wait(), 60)  # the listener is there
    rung.clear()
    connection = await asyncpg.connect(copy)
    async with connection.transaction():
        await fetch.enqueue(url="a", _tx=connection)
        await asyncio.sleep(0.05)
        assert not rung.is_set()
    await asyncio.wait_for(rung.wait(), 60)
    stop()
    await connection.close()


async def test_your_connection_finds_the_tables_in_a_schema_of_their_own(
    postgres_url: str,
) -> None:
    """Though it has a table `jobs` itself, in the schema its own search path points to."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("CREATE TABLE jobs (id int)")
    async with Keptwork(f"{postgres_url}?search_path=keptwork-1") as app:
        fetch = declared(app)
        async with connection.transaction():
            job = await fetch.enqueue(url="a", _tx=connection)
        assert (await row(app, job))["state"] == "queued"
    assert await connection.fetchval("SELECT count(*) FROM jobs") == 0
    await connection.close()


async def test_a_connection_to_a_database_without_our_tables_is_refused(shop: Keptwork, postgres_url: str) -> None:
    fetch, connection = declared(shop), await asyncpg.connect(postgres_url)
    with pytest.raises(NotThere, match="has no Keptwork tables in its schema public; give one to"):
        async with connection.transaction():
            await fetch.enqueue(url="a", _tx=connection)
    with pytest.raises(BadInput, match="is in no transaction; begin one"):
        await fetch.enqueue(url="a", _tx=connection)
    await connection.close()


async def test_a_conflict_on_your_connection_is_told_in_the_drivers_words(shop: Keptwork, copy: str) -> None:
    """So that a loop which tries again on asyncpg's error works as before."""
    fetch, connection = declared(shop), await asyncpg.connect(copy)
    transaction = connection.transaction(isolation="serializable")
    await transaction.start()
    await connection.fetch("SELECT count(*) FROM jobs")
    await fetch.enqueue(url="first", _key="k")
    with pytest.raises(asyncpg.SerializationError):
        await fetch.enqueue(url="second", _key="k", _tx=connection)
    await transaction.rollback()
    await connection.close()


async def test_what_is_no_transaction_is_refused_before_anything_is_stored(app: Keptwork) -> None:
    fetch, stranger = declared(app), sqlite3.connect(":memory:")
    for wrong in (stranger, "tx"):
        with pytest.raises(BadInput, match="cannot be _tx"):
            await fetch.enqueue(url="a", _tx=wrong)
        with pytest.raises(BadInput, match="cannot be _tx"):
            await app.enqueue_many(fetch, [{"url": "a"}], _tx=wrong)
    stranger.close()
    assert await app.work(until_idle=True) == 0
