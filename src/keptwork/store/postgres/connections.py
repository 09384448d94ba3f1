"""Keeps connections to a PostgreSQL server open and lends them for a statement or a transaction."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from contextlib import suppress
from typing import ClassVar

import asyncpg

from keptwork.core.loop_scope import Place, running_loop
from keptwork.errors import OtherLoop
from keptwork.store.postgres.connections_server import (
    SESSION_SETTINGS,
    WaitCancelled,
    connect_seconds,
    is_cancelled_wait,
    wanted,
)
from keptwork.store.url import DatabaseUrl

MOST_AT_HAND = 2
MOST_CONNECTIONS = 10
STATEMENTS_KEPT = 400
APP_ROLE = "keptwork_app"
NARROWING = "SELECT set_config('keptwork.tenant', $1, false)"

Waiting = asyncio.Future[asyncpg.Connection | None]
"""A waiting caller, for a connection or for the signal that the pool has one more."""


class Connections:
    """The connections of one pool.

    Going through the driver's pool takes as long as a short statement. So a returned connection goes to the caller that
    has waited longest, and a few idle connections are kept ready.
    """

    def __init__(self, pool: asyncpg.Pool, most_at_hand: int = MOST_AT_HAND) -> None:
        self._pool = pool
        self._place = Place(running_loop())
        self._at_hand: list[asyncpg.Connection] = []
        self._most_at_hand = most_at_hand
        self._lent = 0
        self._waiting: deque[tuple[float, Waiting]] = deque()
        self._late: asyncio.TimerHandle | None = None

    async def acquired(self) -> asyncpg.Connection:
        """Return a ready connection, one of the pool, or the first that is returned."""
        if not self._place.here:
            raise OtherLoop(what="this store")
        while True:
            if self._at_hand:
                connection = self._at_hand.pop()
            elif self._lent < MOST_CONNECTIONS:
                return await self._from_pool()
            else:
                connection = await self._handed()
            if connection is not None:
                if usable(connection):  # it might have been lost while it was idle or handed over
                    return connection
                await self.release(connection)

    async def put_back(self, connection: asyncpg.Connection) -> None:
        """Return a connection after a successful statement. It is unchanged and ready for its next user. `acquired`
        checks that it is still open."""
        if not self._hand(connection):
            if len(self._at_hand) < self._most_at_hand:
                self._at_hand.append(connection)
            else:
                await self.release(connection)

    async def release(self, connection: asyncpg.Connection) -> None:
        """Return a connection to the driver's pool, after an error or if enough are ready. The pool checks it, and the
        caller that has waited longest then asks the pool."""
        try:
            await self._pool.release(connection)
        finally:
            self._lent -= 1
            self._hand(None)

    async def close(self) -> None:
        """Return all connections to the pool and close it, which waits for those in use."""
        self._most_at_hand = 0
        if self._late is not None:
            self._late.cancel()
        while self._at_hand:
            await self.release(self._at_hand.pop())
        await self._pool.close()

    def abandon(self) -> None:
        """Disconnect without awaiting anything, because the event loop was closed. The server then ends the
        sessions."""
        for connection in [holder._con for holder in self._pool._holders if holder._con is not None]:
            with suppress(Exception):
                connection._transport.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
                connection._transport._call_connection_lost(None)  # what the loop would do; not under TLS

    async def _from_pool(self) -> asyncpg.Connection:
        """Return a connection of the pool. An idle one is immediate, so it needs no timeout, which would need a task of
        its own."""
        self._lent += 1
        try:
            found = await self._pool.acquire(timeout=None if self._pool.get_idle_size() else connect_seconds())
            if Session.gave_up:
                found.take_unconfirmed()  # of a caller that left while its commit waited
            return found
        except BaseException:
            self._lent -= 1
            self._hand(None)
            raise

    async def _handed(self) -> asyncpg.Connection | None:
        """Return a connection that another caller returns, or None if the pool has one more."""
        loop = asyncio.get_running_loop()
        waiting: Waiting = loop.create_future()
        self._waiting.append((loop.time(), waiting))
        if self._late is None:
            self._late = loop.call_later(connect_seconds(), self._give_up)
        try:
            return await waiting
        except asyncio.CancelledError:
            if not waiting.cancelled():  # it arrived at the same moment, so pass it to the next caller
                await self._pass_on(waiting)
            raise

    def _give_up(self) -> None:
        """Time out callers that have waited too long. One timer serves all of them, since most waits are so short that
        a timer each would be wasted."""
        loop, patience = asyncio.get_running_loop(), connect_seconds()
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] + patience <= loop.time()):
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_exception(TimeoutError())
        self._late = loop.call_at(self._waiting[0][0] + patience, self._give_up) if self._waiting else None

    async def _pass_on(self, came: Waiting) -> None:
        connection = None if came.exception() else came.result()
        if connection is None:
            self._hand(None)
        else:
            await self.put_back(connection)

    def _hand(self, connection: asyncpg.Connection | None) -> bool:
        while self._waiting:
            _, waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        return False


class Session(asyncpg.Connection):  # type: ignore[misc]  # the driver has no type hints
    """A session that notices when the server gave up waiting for a synchronous standby.

    The server then answers the commit like any other, preceded by a warning. The driver passes warnings only to
    listeners, and its pool removes those whenever a session is returned.
    """

    gave_up: ClassVar[bool] = False
    """Whether it ever happened in this process. If not, sessions need no check."""
    _unconfirmed = False

    def _process_log_message(self, fields: dict[str, str], last_query: str | None) -> None:
        if is_cancelled_wait(fields):
            self._unconfirmed = Session.gave_up = True
        super()._process_log_message(fields, last_query)

    def take_unconfirmed(self) -> bool:
        """Return whether a commit was not confirmed since the last call."""
        found, self._unconfirmed = self._unconfirmed, False
        return found


def insist_confirmed(session: Session) -> None:
    """Raise if the server gave up waiting for a standby, since the commit might then be lost."""
    if Session.gave_up and session.take_unconfirmed():
        raise WaitCancelled


class AppConnection(Session):
    """A session of the role that sees one tenant's rows, and none before the tenant is set. It has that role from its
    first statement on, and RESET does not change it."""

    narrowed_to: int | None = None

    async def narrow(self, tenant_id: int) -> None:
        """Restrict the session to this tenant. If the tenant is the same as before, this sends no statement."""
        if self.narrowed_to != tenant_id:
            self.narrowed_to = None  # if this is interrupted, the next call sets the tenant again
            await self.execute(NARROWING, str(tenant_id))
            self.narrowed_to = tenant_id


class AppConnections(Connections):
    """Sessions of the role keptwork_app, each restricted to the tenant that last used it. A session is restricted
    before each use, whether it was ready, from the pool, or from another caller."""

    def __init__(self, url: DatabaseUrl) -> None:
        super().__init__(new_pool(url, connection_class=AppConnection, role=APP_ROLE), MOST_CONNECTIONS)
        self._opening = asyncio.Lock()
        self._is_open = False

    async def acquired_for(self, tenant_id: int) -> asyncpg.Connection:
        """Return a session of this tenant, preferably one that it used before."""
        if not self._is_open:
            await self._open()
        if len(self._at_hand) > 1:
            # A session that was lost meanwhile has no such attribute.
            self._at_hand.sort(key=lambda one: getattr(one, "narrowed_to", None) == tenant_id)
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
    """The sessions of the role keptwork_app, for one tenant."""

    def __init__(self, sessions: AppConnections, tenant_id: int) -> None:
        self._sessions = sessions
        self._tenant_id = tenant_id
        self.put_back, self.release = sessions.put_back, sessions.release

    async def acquired(self) -> asyncpg.Connection:
        return await self._sessions.acquired_for(self._tenant_id)


def new_pool(url: DatabaseUrl, *, connection_class: type = Session, **settings: str) -> asyncpg.Pool:
    """Return a pool of sessions with Keptwork's settings and these. It is open once it was awaited."""
    return asyncpg.create_pool(
        url.text,
        min_size=0,  # a minimum would be restored in the background, and each failure would log a traceback
        max_size=MOST_CONNECTIONS,
        timeout=connect_seconds(),
        target_session_attrs=wanted(url),
        server_settings={**SESSION_SETTINGS, **settings},
        statement_cache_size=STATEMENTS_KEPT,
        connection_class=connection_class,
        reset=_nothing_to_reset,
    )


async def _nothing_to_reset(connection: asyncpg.Connection) -> None:
    """Do nothing. Sessions hold no state except what each user sets again (other settings are local to transactions),
    so a reset would be a wasted round trip."""


def usable(connection: asyncpg.Connection) -> bool:
    """Return whether a connection is open. If it was lost, the driver's pool already owns it, and the check raises."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False
