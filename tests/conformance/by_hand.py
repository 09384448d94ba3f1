"""A hand on the database itself, past the store: for what no verb does, and for looking behind the store's back."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import apsw
import asyncpg

from keptwork.store.url import database_url


class Hand(Protocol):
    """Plain SQL on a connection of its own."""

    async def run(self, sql: str) -> list[tuple[Any, ...]]: ...

    async def close(self) -> None: ...


class SqliteHand:
    def __init__(self, url: str) -> None:
        self._db = apsw.Connection(database_url(url).path)
        self._db.set_busy_timeout(5000)

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(lambda: self._db.execute(sql).fetchall())

    async def close(self) -> None:
        self._db.close()


class PostgresHand:
    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def run(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(sql)]

    async def close(self) -> None:
        await self.connection.close()


async def hand_on(url: str) -> Hand:
    """A connection as an ordinary client has it, with none of the product's settings."""
    if url.startswith("sqlite"):
        return SqliteHand(url)
    return PostgresHand(await asyncpg.connect(url))
