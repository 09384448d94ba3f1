"""The store that many machines share: a PostgreSQL database, reached over a pool of connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg

from detent.errors import NewerDatabase, NotMigrated
from detent.store.dialect import POSTGRES
from detent.store.follow import following
from detent.store.migrations import newest
from detent.store.postgres_keys import KeyPages
from detent.store.postgres_migrate import applied, migrate_database, realign
from detent.store.postgres_server import CONNECT_SECONDS, SESSION_SETTINGS, connect, explained
from detent.store.postgres_verbs import PostgresVerbs
from detent.store.queries import Catalogue
from detent.store.records import Event, EventFilter
from detent.store.url import DatabaseUrl

MOST_CONNECTIONS = 10
STATEMENTS_KEPT = 400


class PostgresStore(PostgresVerbs):
    """An open PostgreSQL database."""

    def __init__(self, url: DatabaseUrl, pool: asyncpg.Pool) -> None:
        self.url = url.shown
        self._url = url
        self._pool = pool
        self._catalogue = Catalogue(POSTGRES)
        self._keys = KeyPages(self._reserve_pages)

    @classmethod
    async def open(cls, url: DatabaseUrl, *, migrate: bool = True) -> PostgresStore:
        """Connects, and prepares a database that is new; one of a newer program is refused untouched."""
        connection = await connect(url)
        try:
            with explained(url):
                await _bring_up_to_date(connection, url, migrate)
        finally:
            await connection.close()
        with explained(url):
            return cls(url, await _open_pool(url))

    async def close(self) -> None:
        await self._pool.close()

    @asynccontextmanager
    async def transaction(self, tenant_id: int | None = None) -> AsyncIterator[PostgresTransaction]:
        async with self._connection() as connection, connection.transaction():
            if tenant_id is not None:
                await connection.execute("SET LOCAL ROLE detent_app")
                await connection.execute("SELECT set_config('detent.tenant', $1, true)", str(tenant_id))
            yield PostgresTransaction(connection, self._catalogue, self._keys)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[PostgresTransaction]:
        async with (
            self._connection() as connection,
            connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield PostgresTransaction(connection, self._catalogue, self._keys)

    async def follow(self, wanted: EventFilter | None = None, *, after: str | None = None) -> AsyncIterator[Event]:
        async for event in following(self, wanted or EventFilter(), after):
            yield event

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        with explained(self._url):
            async with self._pool.acquire(timeout=CONNECT_SECONDS) as connection:
                yield connection

    def _transaction(self) -> AbstractAsyncContextManager[PostgresVerbs]:
        return self.transaction()

    async def _reserve_pages(self, count: int) -> list[int]:
        return [row[0] for row in await self._fetch("take_pages", count=count)]


class PostgresTransaction(PostgresVerbs):
    """Several calls on one connection, in one transaction."""

    def __init__(self, connection: asyncpg.Connection, catalogue: Catalogue, keys: KeyPages) -> None:
        self._own = connection
        self._catalogue = catalogue
        self._keys = keys

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[asyncpg.Connection]:
        yield self._own

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[PostgresVerbs]:
        yield self


async def _open_pool(url: DatabaseUrl) -> asyncpg.Pool:
    return await asyncpg.create_pool(
        url.text,
        min_size=1,
        max_size=MOST_CONNECTIONS,
        timeout=CONNECT_SECONDS,
        server_settings=SESSION_SETTINGS,
        statement_cache_size=STATEMENTS_KEPT,
        reset=_nothing_to_reset,
    )


async def _nothing_to_reset(connection: asyncpg.Connection) -> None:
    """Sessions hold no state of their own (settings are local to transactions), so a reset would be a wasted trip."""


async def _bring_up_to_date(connection: asyncpg.Connection, url: DatabaseUrl, migrate: bool) -> None:
    found = await applied(connection)
    if found > newest():
        raise NewerDatabase(url=url.shown, found=found, needed=newest())
    if found < newest():
        if found and not migrate:
            raise NotMigrated(url=url.shown, found=found, needed=newest())
        await migrate_database(connection)
    await realign(connection)
