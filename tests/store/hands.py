"""Hands that type SQL: plain driver connections which know nothing of Keptwork, its settings or its clock.

Both speak the same few words, so that a check is written once. What the database refuses is a `Refused`; nothing else
is caught here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import apsw
import asyncpg

Row = dict[str, Any]


class Refused(Exception):
    """The database said no; the message is its own."""


class Hand(Protocol):
    """One connection."""

    dialect: str
    user: str

    def run(self, sql: str) -> None:
        """Executes one statement."""
        ...

    def rows(self, sql: str) -> list[Row]:
        """What a query finds."""
        ...

    def triggers(self) -> list[tuple[str, str]]:
        """Every guard with its table, in order; other triggers have other names."""
        ...

    def drop(self, trigger: str, table: str) -> None:
        """Takes one trigger away: how a broken twin is made."""
        ...

    def attempt(self, sql: str) -> Any:
        """In the block: the statement has been tried, and this is the refusal if any. After it: undone."""
        ...

    def close(self) -> None: ...


class SqliteHand:
    """apsw, as it comes."""

    dialect = "sqlite"
    user = "sql"

    def __init__(self, path: str) -> None:
        self._db = apsw.Connection(path)
        self._db.set_busy_timeout(30_000)

    def run(self, sql: str) -> None:
        try:
            self._db.execute(sql)
        except apsw.ConstraintError as error:
            raise Refused(str(error)) from error

    def rows(self, sql: str) -> list[Row]:
        cursor = self._db.execute(sql)
        return [dict(zip([column[0] for column in cursor.get_description()], row, strict=True)) for row in cursor]

    def triggers(self) -> list[tuple[str, str]]:
        found = (
            "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name GLOB 'keptwork_*' ORDER BY name"
        )
        return [(str(name), str(table)) for name, table in self._db.execute(found)]

    def drop(self, trigger: str, table: str) -> None:
        self._db.execute(f"DROP TRIGGER {trigger}")

    @contextmanager
    def attempt(self, sql: str) -> Iterator[str | None]:
        # A refused statement is not rolled back here: that it left nothing behind is what is to be seen.
        self._db.execute("SAVEPOINT attempt")
        try:
            yield _refusal(self, sql)
        finally:
            self._db.execute("ROLLBACK TO attempt; RELEASE attempt")

    def close(self) -> None:
        self._db.close()


class PostgresHand:
    """asyncpg without any setting, on an event loop of its own."""

    dialect = "postgres"

    def __init__(self, url: str) -> None:
        self._loop = asyncio.Runner()
        self._db = self._loop.run(asyncpg.connect(url))
        self.user = f"sql:{self.rows('SELECT session_user AS name')[0]['name']}"

    def run(self, sql: str) -> None:
        try:
            self._loop.run(self._db.execute(sql))
        except asyncpg.PostgresError as error:
            raise Refused(f"{error.sqlstate} {error}") from error

    def rows(self, sql: str) -> list[Row]:
        found: Sequence[Any] = self._loop.run(self._db.fetch(sql))
        return [dict(row) for row in found]

    def triggers(self) -> list[tuple[str, str]]:
        found = self.rows(
            "SELECT tgname, tgrelid::regclass::text AS tbl FROM pg_trigger "
            "WHERE NOT tgisinternal AND starts_with(tgname, 'keptwork_') ORDER BY tgname"
        )
        return [(row["tgname"], row["tbl"]) for row in found]

    def drop(self, trigger: str, table: str) -> None:
        self.run(f"DROP TRIGGER {trigger} ON {table}")

    @contextmanager
    def attempt(self, sql: str) -> Iterator[str | None]:
        # One trip for both; a refusal must be rolled back before anything can be read again.
        refusal = _refusal(self, f"SAVEPOINT attempt; {sql}")
        if refusal:
            self.run("ROLLBACK TO attempt")
        try:
            yield refusal
        finally:
            self.run("ROLLBACK TO attempt; RELEASE attempt")

    def close(self) -> None:
        self._loop.run(self._db.close())
        self._loop.close()


def _refusal(hand: SqliteHand | PostgresHand, sql: str) -> str | None:
    try:
        hand.run(sql)
    except Refused as refusal:
        return str(refusal)
    return None
