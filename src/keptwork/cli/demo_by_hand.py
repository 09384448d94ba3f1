"""Runs SQL over a plain connection without Keptwork's settings, to show what the database itself rejects."""

from __future__ import annotations

import asyncio

from keptwork.errors import StoreError
from keptwork.store.url import database_url

ACCEPTED = "its guards let an undeclared change pass"


async def refusal_of(statement: str, url: str | None = None) -> str:
    """Run the statement and return the database's refusal. Roll back a statement that the database accepts."""
    target = database_url(url)
    if target.dialect == "sqlite":
        return await asyncio.to_thread(_sqlite_refusal, statement, target.path)
    import asyncpg  # optional dependency

    connection = await asyncpg.connect(target.text)
    try:
        await connection.execute(f"BEGIN; {statement}; ROLLBACK")
    except asyncpg.PostgresError as refusal:
        return str(refusal)
    finally:
        await connection.close()
    raise StoreError(url=target.shown, detail=ACCEPTED)


def _sqlite_refusal(statement: str, path: str) -> str:
    import apsw

    db = apsw.Connection(path)
    try:
        db.execute(f"BEGIN; {statement}; ROLLBACK").fetchall()
    except apsw.ConstraintError as refusal:
        return str(refusal)
    finally:
        db.close()
    raise StoreError(url=path, detail=ACCEPTED)
