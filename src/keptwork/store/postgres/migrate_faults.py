"""Faults of a PostgreSQL database: guards that were dropped or disabled. The server itself reports damaged pages."""

from __future__ import annotations

import re

import asyncpg

from keptwork.store.dialect import POSTGRES
from keptwork.store.migrations import Tell, log, migrations
from keptwork.store.postgres.lock_retry import Bounded, patiently

_GUARD = re.compile(r"CREATE TRIGGER (\w+) .*? ON (\w+)", re.DOTALL)

_ENABLED_TRIGGERS = """SELECT t.tgname FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = current_schema()::regnamespace AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal"""


async def postgres_faults(connection: asyncpg.Connection) -> list[str]:
    """Return the guards that are missing or disabled."""
    return [f"the guard {guard[1]} is missing or switched off" for guard in await _lacking(connection)]


async def restore_guards(connection: asyncpg.Connection, tell: Tell = log.warning) -> list[str]:
    """Restore every missing or disabled guard as declared, in one transaction, and return their names."""

    async def restore(bounded: Bounded) -> list[str]:
        lacking = await _lacking(connection)
        for guard in lacking:
            await connection.execute(
                bounded(f"DROP TRIGGER IF EXISTS {guard[1]} ON {guard[2]}")
            )  # only names of declared guards
            await connection.execute(bounded(guard.string))
        return [guard[1] for guard in lacking]

    return await patiently(connection, restore, tell)


async def _lacking(connection: asyncpg.Connection) -> list[re.Match[str]]:
    enabled = {row[0] for row in await connection.fetch(_ENABLED_TRIGGERS)}
    statements = [sql for migration in migrations(POSTGRES) for sql in migration.statements]
    return [guard for sql in statements if (guard := _GUARD.match(sql)) and guard[1] not in enabled]
