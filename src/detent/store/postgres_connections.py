"""Connections to a PostgreSQL server, kept open and lent for a statement or a transaction."""

from __future__ import annotations

import asyncio
from collections import deque

import asyncpg

from detent.store.postgres_server import connect_seconds

MOST_AT_HAND = 2
MOST_CONNECTIONS = 10


class Connections:
    """Those of one pool. Going through the driver's pool takes as long as a short statement: so what is given back goes
    to whoever waits longest, and a few that nobody waits for are kept at hand."""

    def __init__(self, pool: asyncpg.Pool, most_at_hand: int = MOST_AT_HAND) -> None:
        self._pool = pool
        self._at_hand: list[asyncpg.Connection] = []
        self._most_at_hand = most_at_hand
        self._lent = 0
        self._waiting: deque[asyncio.Future[asyncpg.Connection | None]] = deque()

    async def acquired(self) -> asyncpg.Connection:
        """One at hand, one of the pool, or the first that is given back."""
        while True:
            while self._at_hand:
                connection = self._at_hand.pop()
                if _usable(connection):
                    return connection
                await self.release(connection)
            if self._lent < MOST_CONNECTIONS:
                return await self._from_pool()
            handed = await self._handed()
            if handed is not None:
                return handed

    async def put_back(self, connection: asyncpg.Connection) -> None:
        """After a statement that went well a connection is as it was, and good for the next one."""
        if not _usable(connection):
            await self.release(connection)
        elif not self._hand(connection):
            if len(self._at_hand) < self._most_at_hand:
                self._at_hand.append(connection)
            else:
                await self.release(connection)

    async def release(self, connection: asyncpg.Connection) -> None:
        """After something went wrong on it, or if there are enough: the driver's pool looks whether it is good for
        another use. Whoever waits longest asks the pool then."""
        try:
            await self._pool.release(connection)
        finally:
            self._lent -= 1
            self._hand(None)

    async def close(self) -> None:
        """What is still in use goes back to the pool, which waits for it."""
        self._most_at_hand = 0
        while self._at_hand:
            await self.release(self._at_hand.pop())
        await self._pool.close()

    async def _from_pool(self) -> asyncpg.Connection:
        """One that is idle is there at once; waiting with a limit, as for a new one, would take a task of its own."""
        self._lent += 1
        try:
            return await self._pool.acquire(timeout=None if self._pool.get_idle_size() else connect_seconds())
        except BaseException:
            self._lent -= 1
            self._hand(None)
            raise

    async def _handed(self) -> asyncpg.Connection | None:
        """What somebody gives back; none if there is one more to be had from the pool."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[asyncpg.Connection | None] = loop.create_future()
        self._waiting.append(waiting)
        late = loop.call_later(connect_seconds(), _give_up, waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if not waiting.cancelled():  # it came at the same moment, and is for the next
                await self._pass_on(waiting)
            raise
        finally:
            late.cancel()

    async def _pass_on(self, came: asyncio.Future[asyncpg.Connection | None]) -> None:
        connection = None if came.exception() else came.result()
        if connection is None:
            self._hand(None)
        else:
            await self.put_back(connection)

    def _hand(self, connection: asyncpg.Connection | None) -> bool:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(connection)
                return True
        return False


def _give_up(waiting: asyncio.Future[asyncpg.Connection | None]) -> None:
    if not waiting.done():
        waiting.set_exception(TimeoutError())


def _usable(connection: asyncpg.Connection) -> bool:
    """One that was lost the driver's pool has taken back already; it refuses to say that it is closed."""
    try:
        return not connection.is_closed()
    except asyncpg.InterfaceError:
        return False
