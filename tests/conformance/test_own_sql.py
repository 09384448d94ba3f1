"""The caller's own statements in a transaction of the store: rows and jobs commit together, the guards hold."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import apsw
import asyncpg
import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput, StoreError
from keptwork.store import NewJob, Store
from keptwork.store.contract.store import Store as Promises
from keptwork.store.contract.store import Transaction
from tests.conformance.promises import keeps
from tests.conformance.stage import claim, log, queued, undone, worker


def marks(store: Store, count: int) -> list[str]:
    """Placeholders as the database writes them."""
    return [f"${place}" if store.url.startswith("postgres") else "?" for place in range(1, count + 1)]


@pytest.fixture
async def orders(store: Store) -> str:
    """A table of the user's own, in the same database."""
    async with store.transaction() as transaction:
        await transaction.execute("DROP TABLE IF EXISTS own_orders")
        assert await transaction.execute("CREATE TABLE own_orders (id integer PRIMARY KEY, name text)") == 0
    one, two = marks(store, 2)
    return f"INSERT INTO own_orders (id, name) VALUES ({one}, {two})"


async def count(store: Store) -> int:
    async with store.transaction() as transaction:
        (row,) = await transaction.fetch("SELECT count(*) AS n FROM own_orders")
    return int(row["n"])


@keeps(
    Transaction.execute,
    "Run a caller's own statement, written for this database, and return the number of rows it changed",
)
@keeps(Transaction.fetch, "Return the rows of such a statement, by column name")
async def test_rows_and_jobs_of_one_transaction_are_there_together_or_not_at_all(store: Store, orders: str) -> None:
    async with store.transaction() as transaction:
        assert await transaction.execute(orders, 1, "ann") == 1
        await transaction.enqueue([NewJob("ship", key="order-1")])
        assert await transaction.execute(orders, 2, None) == 1
        assert await transaction.execute("UPDATE own_orders SET name = 'bob'") == 2
        assert await transaction.execute("DELETE FROM own_orders WHERE id > 9") == 0
        found = await transaction.fetch(f"SELECT id, name FROM own_orders WHERE id = {marks(store, 1)[0]}", 1)
        assert found == [{"id": 1, "name": "bob"}]
        assert await transaction.fetch("SELECT id FROM own_orders WHERE id > 9") == []
        assert await transaction.execute("SELECT * FROM own_orders") == 0
    async with undone(store) as transaction:
        await transaction.execute(orders, 3, "eve")
        await transaction.enqueue([NewJob("ship", key="order-3")])
    assert (await count(store), await store.counts(JOB)) == (2, (1, 0))


@keeps(
    Transaction.execute,
    "The guards apply as to any other statement",
    "A statement that would end the transaction, or outlive it, raises `BadInput`",
)
async def test_a_statement_that_would_end_the_transaction_is_refused_and_the_rest_commits(
    store: Store, orders: str
) -> None:
    refused = ["COMMIT", "rollback", "END", "BEGIN", "SAVEPOINT x", "RELEASE unit", "ABORT", "START TRANSACTION"]
    refused += ["PRAGMA foreign_keys = 1", "ATTACH 'x' AS y", "DETACH y", "VACUUM", "SET x.y = 1", "RESET ALL"]
    refused += [f"{before}COMMIT" for before in (" ", "-- a\n", "/* a */ ", ";", "/* -- */\n--\n;;")]
    async with store.transaction() as transaction:
        await transaction.execute(orders, 1, "ann")
        for sql in refused:
            with pytest.raises(BadInput, match="cannot run inside a transaction of Keptwork"):
                await transaction.execute(sql)
            with pytest.raises(BadInput, match="cannot run inside a transaction of Keptwork"):
                await transaction.fetch(sql)
        for sql in ("", "--", "/* /* */ COMMIT", "'x'"):
            with pytest.raises(BadInput, match="is no statement"):
                await transaction.execute(sql)
        await transaction.enqueue([NewJob("ship")])
    assert (await count(store), await store.counts(JOB)) == (1, (1, 0))


async def test_an_end_hidden_behind_another_statement_does_not_pass(store: Store, orders: str) -> None:
    async def hide() -> None:
        async with store.transaction() as transaction:
            await transaction.execute(orders, 1, "ann")
            await transaction.execute("UPDATE own_orders SET name = 'eve'; COMMIT")

    with pytest.raises((BadInput, StoreError)):
        await hide()
    assert await count(store) == 0


async def test_the_guards_hold_for_it(store: Store) -> None:
    (id,) = await queued(store)
    with pytest.raises(StoreError, match="no declared move"):
        async with store.transaction() as transaction:
            await transaction.execute(f"UPDATE jobs SET state = 'succeeded' WHERE id = {id}")
    with pytest.raises(StoreError, match="append-only"):
        async with store.transaction() as transaction:
            await transaction.execute("DELETE FROM events")
    assert [job.id for job in await claim(store, await worker(store))] == [id]


# --- whose transaction


@keeps(
    Promises.within,
    "Return the queue inside a transaction that is already open",
    "The transaction is one of this store or, on PostgreSQL, that of a caller's asyncpg connection",
)
async def test_the_queue_from_inside_a_transaction_is_part_of_it(store: Store) -> None:
    async with undone(store) as transaction:
        await store.within(transaction).enqueue([NewJob("a")])
    async with store.transaction() as transaction:
        await store.within(transaction).enqueue([NewJob("b")])
    assert [row["kind"] for row in await store.jobs()] == ["b"]
    assert len(await log(store)) == 1


@keeps(Promises.within, "Anything else raises `BadInput`")
async def test_what_is_no_transaction_of_the_database_is_refused_in_one_line(store: Store, tmp_path: Path) -> None:
    stdlib, own = sqlite3.connect(tmp_path / "a.db"), apsw.Connection(str(tmp_path / "b.db"))
    wanted = "app.transaction()"
    for given in (stdlib, own, "tx", object()):
        with pytest.raises(BadInput) as refusal:
            store.within(given)
        assert wanted in str(refusal.value)
        assert "\n" not in str(refusal.value)
    if not store.url.startswith("postgres"):
        with pytest.raises(BadInput, match=r"sqlite3\.Connection cannot be _tx: closing a file through a second"):
            store.within(stdlib)
    stdlib.close()
    own.close()


async def test_a_connection_of_postgresql_is_refused_by_a_file(sqlite_url: str, postgres_url: str) -> None:
    from keptwork.store import open_store

    store, connection = await open_store(sqlite_url), await asyncpg.connect(postgres_url)
    with pytest.raises(BadInput, match=r"asyncpg\.connection\.Connection cannot be _tx"):
        store.within(connection)
    await connection.close()
    await store.close()
