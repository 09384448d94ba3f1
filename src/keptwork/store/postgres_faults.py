"""What is wrong with a PostgreSQL database itself. Damaged pages the server reports when they are read; that a guard
was dropped or switched off it does not."""

from __future__ import annotations

import re

import asyncpg

from keptwork.store.dialect import POSTGRES
from keptwork.store.migrations import Tell, log, migrations
from keptwork.store.postgres_patience import Bounded, patiently

_GUARD = re.compile(r"CREATE TRIGGER (\w+) .*? ON (\w+)", re.DOTALL)

_ENABLED_TRIGGERS = """SELECT t.tgname FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = current_schema()::regnamespace AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal"""


async def postgres_faults(connection: asyncpg.Connection) -> list[str]:
    """The guards that are missing or switched off, and whatever else the tables do by themselves."""
    return [f"the guard {guard[1]} is missing or switched off" for guard in await _lacking(connection)]


async def restore_guards(connection: asyncpg.Connection, tell: Tell = log.warning) -> list[str]:
    """Puts every guard that is missing or switched off back as it is declared, in one transaction; returns which."""

    async def restore(bounded: Bounded) -> list[str]:
        lacking = await _lacking(connection)
        for guard in lacking:
            await connection.execute(bounded(f"DROP TRIGGER IF EXISTS {guard[1]} ON {guard[2]}"))  # names of our own
            await connection.execute(bounded(guard.string))
        return [guard[1] for guard in lacking]

    return await patiently(connection, restore, tell)


async def _lacking(connection: asyncpg.Connection) -> list[re.Match[str]]:
    enabled = {row[0] for row in await connection.fetch(_ENABLED_TRIGGERS)}
    statements = [sql for migration in migrations(POSTGRES) for sql in migration.statements]
    return [guard for sql in statements if (guard := _GUARD.match(sql)) and guard[1] not in enabled]
