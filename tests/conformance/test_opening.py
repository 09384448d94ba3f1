"""Opening: what a store says it is, and whose database it leaves alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import asyncpg
import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import NotOurDatabase
from keptwork.store import NewJob, Store, open_store
from keptwork.store.contract.store import Store as Promises
from tests.conformance.promises import keeps
from tests.conformance.stage import claimed, entity, log, moved, queued, worker


@keeps(Promises.url, "The database URL, safe to display")
async def test_a_store_says_which_database_it_is_and_never_its_password(store: Store, database_url: str) -> None:
    password = database_url.partition(":")[2].partition("@")[0].rpartition(":")[2] if "@" in database_url else ""
    assert store.url == (database_url.replace(password, "***") if password else database_url)
    assert not password or password not in store.url


async def everything(connection: asyncpg.Connection) -> list[str]:
    """Every relation, function and schema of a database."""
    rows = await connection.fetch(
        "SELECT 'relation ' || oid::regclass FROM pg_class WHERE relnamespace::regnamespace::text !~ '^pg_|^inform' "
        "UNION ALL SELECT 'function ' || oid::regprocedure FROM pg_proc "
        "WHERE pronamespace::regnamespace::text !~ '^pg_|^inform' "
        "UNION ALL SELECT 'schema ' || nspname FROM pg_namespace"
    )
    return sorted(row[0] for row in rows)


@pytest.mark.parametrize("table", ["jobs", "events"])
async def test_a_postgres_database_of_another_program_is_refused_untouched(postgres_url: str, table: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(f"CREATE TABLE {table} AS SELECT 17 AS ours")
    before = await everything(connection)
    for migrate in (True, False):
        with pytest.raises(NotOurDatabase, match=f"it has a table {table}"):
            await open_store(postgres_url, migrate=migrate)
    assert await everything(connection) == before
    assert await connection.fetchval(f"SELECT ours FROM {table}") == 17
    await connection.close()


async def test_a_sqlite_file_of_another_program_is_refused_untouched(sqlite_url: str, tmp_path: Path) -> None:
    path = tmp_path / "keptwork.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE jobs (ours)")
    db.close()
    before = path.read_bytes()
    with pytest.raises(NotOurDatabase):
        await open_store(sqlite_url)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["keptwork.db"]


async def test_two_programs_may_prepare_a_new_database_at_once(sqlite_url: str, postgres_url: str) -> None:
    for url in (sqlite_url, postgres_url):
        stores = await asyncio.gather(*[open_store(url) for _ in range(3)])
        await queued(stores[0])
        assert [await store.counts(JOB) for store in stores] == [(1, 0)] * 3
        await asyncio.gather(*[store.close() for store in stores])


# --- another schema, on PostgreSQL only


async def test_a_search_path_in_the_url_says_into_which_schema_it_goes(postgres_url: str) -> None:
    store = await open_store(f"{postgres_url}?search_path=other")
    owner = await worker(store)
    (job,) = await claimed(store, owner)
    await moved(store, JOB, job.id, "start", by="holder")
    async with store.transaction(tenant_id=1) as transaction:
        await moved(transaction, JOB, job.id, "succeed", by="holder")
        assert len(await transaction.enqueue([NewJob("kind", key="k")])) == 1
    await store.close()
    connection = await asyncpg.connect(postgres_url)
    found = await connection.fetch(
        "SELECT DISTINCT relnamespace::regnamespace::text FROM pg_class "
        "WHERE relname IN ('jobs', 'events', 'keptwork_pages')"
    )
    assert [row[0] for row in found] == ["other"]
    assert await connection.fetchval("SELECT count(*) FROM other.jobs") == 2
    await connection.close()


async def test_in_another_schema_a_hand_with_its_own_search_path_is_guarded_and_logged_too(postgres_url: str) -> None:
    store = await open_store(f"{postgres_url}?search_path=other")
    (id,) = await queued(store)
    hand = await asyncpg.connect(postgres_url)
    with pytest.raises(asyncpg.PostgresError, match="no declared move"):
        await hand.execute("UPDATE other.jobs SET state = 'succeeded'")
    await hand.execute("UPDATE other.jobs SET state = 'cancelled', seq = seq + 1, move = 'cancel'")
    await hand.execute(
        "INSERT INTO other.jobs (tenant_id, state, move, queue, kind, payload) "
        "VALUES (1, 'queued', 'enqueue', 'default', 'by hand', '{}')"
    )
    await hand.close()
    assert (await entity(store, JOB, id))["state"] == "cancelled"
    assert [event.type for event in await log(store)] == ["job_enqueued", "job_cancelled", "job_enqueued"]
    await store.close()


async def test_two_schemas_of_one_database_are_two_databases(postgres_url: str) -> None:
    one, other = [await open_store(f"{postgres_url}?search_path={name}") for name in ("one", "other")]
    await queued(one, 3)
    assert (await one.counts(JOB), await other.counts(JOB)) == ((3, 0), (0, 0))
    await one.close()
    await other.close()
