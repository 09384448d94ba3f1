"""Migrates a PostgreSQL database to the schema of this program."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial

import asyncpg

from keptwork.core.lifecycles import LIFECYCLES
from keptwork.errors import NotOurDatabase
from keptwork.store.dialect import POSTGRES
from keptwork.store.migrations import HISTORY_TABLE, LOCK_KEY, Migration, Tell, log, migrations, stops_told
from keptwork.store.postgres.lock_retry import Bounded, patiently, take_turn

Execute = Callable[[str], Awaitable[object]]

_OUR_TRIGGERS = """SELECT format('DROP TRIGGER %I ON %I', t.tgname, c.relname) FROM pg_trigger AS t
JOIN pg_class AS c ON c.oid = t.tgrelid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = current_schema() AND t.tgname LIKE 'keptwork\\_%' AND NOT t.tgisinternal"""

_NAMESAKES = """SELECT relname FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relname = ANY($1::text[]) ORDER BY relname LIMIT 1"""

_TX_FUNCTIONS = """CREATE OR REPLACE FUNCTION keptwork_tx() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_current_xact_id()::text::bigint + {ahead} $$;
CREATE OR REPLACE FUNCTION keptwork_tx_horizon() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + {ahead} $$"""


async def applied(connection: asyncpg.Connection) -> int:
    """Return the number of the newest migration in the database, or 0 for a new database."""
    if await connection.fetchval("SELECT to_regclass('keptwork_migrations')") is None:
        return 0
    return int(await connection.fetchval("SELECT coalesce(max(number), 0) FROM keptwork_migrations"))


async def applied_at_rest(connection: asyncpg.Connection) -> int:
    """Return the same number once no program is migrating the database."""
    await take_turn(connection, LOCK_KEY)
    await connection.execute("SELECT pg_advisory_unlock($1)", LOCK_KEY)
    return await applied(connection)


async def pending(connection: asyncpg.Connection) -> list[Migration]:
    """Return the migrations that the database still needs."""
    done = await applied(connection)
    return [migration for migration in migrations(POSTGRES) if migration.number > done]


async def migrate_database(
    connection: asyncpg.Connection, execute: Execute | None = None, tell: Tell = log.warning
) -> list[Migration]:
    """Apply the pending migrations under a lock, each in one transaction with its row in the history.

    If the process dies at any statement, the database is as it was before the interrupted migration, and the next call
    continues there. Two concurrent programs take turns, and the second finds nothing to do. Programs that use the
    database meanwhile wait for a fraction of a second at most, however long a migration must wait for one of them.
    """
    await take_turn(connection, LOCK_KEY, tell)
    try:
        await _prepare_schema(connection)
        waiting = await pending(connection)
        for place, migration in enumerate(waiting, 1):
            with stops_told(migration, f"{place} of {len(waiting)}", tell):
                await patiently(connection, partial(_apply, connection, migration, execute or connection.execute), tell)
        return waiting
    finally:
        if not connection.is_closed():
            await connection.execute("SELECT pg_advisory_unlock($1)", LOCK_KEY)


async def realign(connection: asyncpg.Connection) -> None:
    """Make new events sort after existing ones. This is needed if a dump was restored into another cluster."""
    newest, limit = await connection.fetchrow(
        "SELECT (SELECT tx FROM events ORDER BY tx DESC LIMIT 1), keptwork_tx_horizon() + "
        "pg_snapshot_xmax(pg_current_snapshot())::text::bigint - pg_snapshot_xmin(pg_current_snapshot())::text::bigint"
    )
    if newest is not None and newest >= limit:
        await connection.execute(_TX_FUNCTIONS.format(ahead=int(newest) + 1))


async def _prepare_schema(connection: asyncpg.Connection) -> None:
    """Create the schema that the search path names first, if it is missing. The tables go there."""
    if await connection.fetchval("SELECT current_schema()") is None:
        path = await connection.fetchval("SELECT split_part(current_setting('search_path'), ',', 1)")
        await connection.execute(
            await connection.fetchval("SELECT format('CREATE SCHEMA IF NOT EXISTS %I', $1::text)", path)
        )
    await refuse_foreign(connection)


async def refuse_foreign(connection: asyncpg.Connection) -> None:
    """Reject a schema that has tables with Keptwork's names but without its history."""
    tables = ["events", "tenants", "queues", *{lifecycle.table for lifecycle in LIFECYCLES.values()}]
    found = await connection.fetchval(_NAMESAKES, tables)
    if found is not None and await applied(connection) == 0:
        database = await connection.fetchval("SELECT current_database()")
        raise NotOurDatabase(path=f"{database} (it has a table {found}; ?search_path=keptwork in the URL avoids it)")


async def _apply(connection: asyncpg.Connection, migration: Migration, execute: Execute, bounded: Bounded) -> None:
    await execute(HISTORY_TABLE)
    if migration.replaces_guards:
        for row in await connection.fetch(_OUR_TRIGGERS):
            await execute(bounded(row[0]))
    for statement in migration.statements:
        await execute(bounded(statement))
    await connection.execute(
        "INSERT INTO keptwork_migrations (number, name, applied_at) VALUES ($1, $2, $3)",
        migration.number,
        migration.name,
        time.time_ns() // 1000,
    )
