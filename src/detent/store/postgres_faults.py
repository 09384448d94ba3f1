"""What is wrong with a PostgreSQL database itself. Damaged pages the server reports when they are read; that a guard
was dropped or switched off it does not."""

from __future__ import annotations

import re

import asyncpg

from detent.store.dialect import POSTGRES
from detent.store.migrations import migrations

_GUARD = re.compile(r"CREATE TRIGGER (\w+)")

_ENABLED_TRIGGERS = """SELECT t.tgname FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
WHERE c.relnamespace = current_schema()::regnamespace AND t.tgenabled IN ('O', 'A') AND NOT t.tgisinternal"""


async def postgres_faults(connection: asyncpg.Connection) -> list[str]:
    """The guards that are missing or switched off, and whatever else the tables do by themselves."""
    enabled = {row[0] for row in await connection.fetch(_ENABLED_TRIGGERS)}
    statements = [sql for migration in migrations(POSTGRES) for sql in migration.statements]
    declared = [match[1] for sql in statements if (match := _GUARD.match(sql))]
    return [f"the guard {name} is missing or switched off" for name in declared if name not in enabled]
