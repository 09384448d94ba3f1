"""A PostgreSQL primary whose synchronous standby confirms nothing, so that commits wait for it.

`local` makes a URL for sessions that do not wait. They stand for callers that gave up: their commits are on the primary
alone, where everybody sees them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import asyncpg

from tests.support.postgres_server import PostgresServer

LOCAL = "synchronous_commit=local"
NOBODY = "nobody"
"""No standby of this name ever connects."""

_WAITING = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep' AND state = 'active'"


def local(url: str) -> str:
    """Return the URL for sessions that do not wait for a standby."""
    return f"{url}{'&' if '?' in url else '?'}{LOCAL}"


class Primary(ABC):
    """A superuser's hand on the primary, which never waits itself."""

    def __init__(self, hand: asyncpg.Connection) -> None:
        self.hand = hand

    @abstractmethod
    async def deafen(self) -> None:
        """Make commits wait from now on."""

    @abstractmethod
    async def hear(self) -> None:
        """Let go every commit that waits, and make none wait."""

    async def holds_back(self, answer: asyncio.Future[Any]) -> bool:
        """Return whether a commit waits before the answer is there."""
        while not answer.done():
            if await self._look(f"SELECT count(*) {_WAITING}"):
                return True
        return False

    async def nobody_waits(self) -> None:
        """Return when no commit waits any more."""
        while await self._look(f"SELECT count(*) {_WAITING}"):
            pass

    async def _look(self, sql: str) -> Any:
        await asyncio.sleep(0.001)
        return await self.hand.fetchval(sql)

    async def cancel_waits(self) -> None:
        """Cancel every wait, as an operator does who wants the client to go on."""
        await self.hand.execute(f"SELECT pg_cancel_backend(pid) {_WAITING}")


class WithoutStandby(Primary):
    """The standby it waits for is not there."""

    async def deafen(self) -> None:
        await self._wait_for(NOBODY)

    async def hear(self) -> None:
        await self._wait_for("")

    async def _wait_for(self, standby: str) -> None:
        await self.hand.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
        await self.hand.execute("SELECT pg_reload_conf()")
        while await self._look("SHOW synchronous_standby_names") != standby:
            pass


class WithStandby(Primary):
    """A standby follows it; the process that receives for the standby is stopped, and goes on again."""

    def __init__(self, hand: asyncpg.Connection, second: PostgresServer) -> None:
        super().__init__(hand)
        self._second = second

    async def deafen(self) -> None:
        self._signal(signal.SIGSTOP)

    async def hear(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        os.kill(int(self._second.superuser_sql("SELECT pid FROM pg_stat_wal_receiver")), number)


@asynccontextmanager
async def primary(server: PostgresServer, url: str, second: PostgresServer | None = None) -> AsyncIterator[Primary]:
    """The primary of a database, which hears again when the block ends."""
    where: dict[str, Any] = {"host": str(server.socket_folder), "port": server.port, "user": "postgres"}
    where["database"] = urlsplit(url).path.lstrip("/")
    hand = await asyncpg.connect(**where, server_settings={"synchronous_commit": "local"})
    found = WithoutStandby(hand) if second is None else WithStandby(hand, second)
    try:
        yield found
    finally:
        await found.hear()
        await hand.close()
