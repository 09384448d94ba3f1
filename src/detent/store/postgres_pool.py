"""Connections to a PostgreSQL server, kept open and lent for a statement or a transaction."""

from __future__ import annotations

import asyncio

import asyncpg

from detent.store.postgres_server import SESSION_SETTINGS, connect_seconds
from detent.store.url import DatabaseUrl

MOST_AT_HAND = 2
MOST_CONNECTIONS = 10
STATEMENTS_KEPT = 400
APP_ROLE = "detent_app"
NARROWING = "SELECT set_config('detent.tenant', $1, false)"


class Connections:
    """Those of one role. A few that were given back are kept at hand, for going through the driver's pool takes as long
    as a short statement."""

    def __init__(self, pool: asyncpg.Pool, most_at_hand: int = MOST_AT_HAND) -> None:
        self._pool = pool
        self._at_hand: list[asyncpg.Connection] = []
        self._most_at_hand = most_at_hand
        self._wanted = 0

    async def acquired(self) -> asyncpg.Connection:
        """One that is idle is there at once; waiting with a limit, as for a new one, would take a task of its own."""
        while self._at_hand:
            connection = self._at_hand.pop()
            if not connection.is_closed():
                return connection
            await self._pool.release(connection)
        self._wanted += 1
        try:
            return await self._pool.acquire(timeout=None if self._pool.get_idle_size() else connect_seconds())
        finally:
            self._wanted -= 1

    async def put_back(self, connection: asyncpg.Connection) -> None:
        """After a statement that went well a connection is as it was. It is kept at hand for the next one, unless there
        are enough of them, or somebody waits for the pool."""
        if self._wanted or len(self._at_hand) >= self._most_at_hand or connection.is_closed():
            await self._pool.release(connection)
        else:
            self._at_hand.append(connection)

    async def release(self, connection: asyncpg.Connection) -> None:
        """After something went wrong on it: the driver's pool looks whether it can be used again."""
        await self._pool.release(connection)

    async def close(self) -> None:
        """What is still in use goes back to the pool, which waits for it."""
        self._most_at_hand = 0
        while self._at_hand:
            await self._pool.release(self._at_hand.pop())
        await self._pool.close()


class AppConnection(asyncpg.Connection):  # type: ignore[misc]  # the driver says nothing of its types
    """A session of the role that sees one tenant's rows, or none at all until it was told which. It is that role from
    its first statement on, and no RESET makes it another."""

    narrowed_to: int | None = None

    async def narrow(self, tenant_id: int) -> None:
        """From here on it is this tenant's. A session that stays with its tenant is asked nothing."""
        if self.narrowed_to != tenant_id:
            self.narrowed_to = None  # should this be cut off in the middle, the next one says it again
            await self.execute(NARROWING, str(tenant_id))
            self.narrowed_to = tenant_id


class AppConnections(Connections):
    """Sessions of the application's role, each narrowed to the tenant that had it last."""

    def __init__(self, url: DatabaseUrl) -> None:
        super().__init__(new_pool(url, connection_class=AppConnection, role=APP_ROLE), MOST_CONNECTIONS)
        self._opening = asyncio.Lock()
        self._is_open = False

    async def acquired_for(self, tenant_id: int) -> asyncpg.Connection:
        """A session of this tenant: one that was its own before, if there is one."""
        if not self._is_open:
            await self._open()
        self._at_hand.sort(key=lambda one: one.narrowed_to == tenant_id)
        connection = await self.acquired()
        try:
            await connection.narrow(tenant_id)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def _open(self) -> None:
        async with self._opening:
            await self._pool
            self._is_open = True


class TenantConnections:
    """The application's sessions as one tenant has them."""

    def __init__(self, sessions: AppConnections, tenant_id: int) -> None:
        self._sessions = sessions
        self._tenant_id = tenant_id
        self.put_back, self.release = sessions.put_back, sessions.release

    async def acquired(self) -> asyncpg.Connection:
        return await self._sessions.acquired_for(self._tenant_id)


def new_pool(url: DatabaseUrl, *, connection_class: type = asyncpg.Connection, **settings: str) -> asyncpg.Pool:
    """A pool of sessions with the settings every one of ours has, and these; it is open once it was awaited."""
    return asyncpg.create_pool(
        url.text,
        min_size=0,  # a floor would be restored in the background, with a traceback in the log whenever that fails
        max_size=MOST_CONNECTIONS,
        timeout=connect_seconds(),
        server_settings={**SESSION_SETTINGS, **settings},
        statement_cache_size=STATEMENTS_KEPT,
        connection_class=connection_class,
        reset=_nothing_to_reset,
    )


async def _nothing_to_reset(connection: asyncpg.Connection) -> None:
    """Sessions hold no state but what each next user of them sets anew (other settings are local to transactions), so a
    reset would be a wasted trip."""
