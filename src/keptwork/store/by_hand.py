"""SQL typed by hand, as into `sqlite3` or `psql`: a connection with none of our settings, to show what a database
refuses by itself."""

from __future__ import annotations

import asyncio

from keptwork.errors import StoreError
from keptwork.store.url import database_url

ACCEPTED = "its guards let an undeclared change pass"


async def refusal_of(statement: str, url: str | None = None) -> str:
    """Runs the statement, and returns what the database says against it. A statement that it accepts is undone."""
    target = database_url(url)
    if target.dialect == "sqlite":
        return await asyncio.to_thread(_sqlite_refusal, statement, target.path)
    import asyncpg  # here, for a plain install does without it

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
