"""Databases whose time stands still until a test moves it: a clock beside SQLite, a one-row table in PostgreSQL."""

from __future__ import annotations

from typing import Protocol

import asyncpg

from keptwork.core.clock import ManualClock
from keptwork.store import Store, open_store

START = 1_700_000_000_000_000


class Timed(Protocol):
    """An open store and the hand on its clock."""

    store: Store

    async def advance(self, microseconds: int) -> None: ...

    async def close(self) -> None: ...


class TimedSqlite:
    """A SQLite store under a manual clock."""

    def __init__(self, store: Store, clock: ManualClock) -> None:
        self.store, self._clock = store, clock

    async def advance(self, microseconds: int) -> None:
        self._clock.advance(microseconds)

    async def close(self) -> None:
        await self.store.close()


class TimedPostgres:
    """A PostgreSQL store in whose database `keptwork_now()` reads a table."""

    def __init__(self, store: Store, hand: asyncpg.Connection, original: str) -> None:
        self.store, self._hand, self._original = store, hand, original

    async def advance(self, microseconds: int) -> None:
        await self._hand.execute("UPDATE test_clock SET at = at + $1::bigint", microseconds)

    async def close(self) -> None:
        """With time as it was, for whoever uses the database next."""
        await self._hand.execute(self._original)
        await self._hand.execute("DROP TABLE test_clock")
        await self._hand.close()
        await self.store.close()


async def open_timed(url: str) -> Timed:
    """The store of that URL with its time in our hand. The database is the test's own, so its clock may be replaced."""
    if url.startswith("sqlite"):
        clock = ManualClock(START)
        return TimedSqlite(await open_store(url, clock=clock), clock)
    store = await open_store(url)
    hand = await asyncpg.connect(url)
    original = await hand.fetchval("SELECT pg_get_functiondef('keptwork_now'::regproc)")
    await hand.execute(f"CREATE TABLE IF NOT EXISTS test_clock AS SELECT {START}::bigint AS at")
    await hand.execute(
        "CREATE OR REPLACE FUNCTION keptwork_now() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT at FROM test_clock'"
    )
    return TimedPostgres(store, hand, original)
