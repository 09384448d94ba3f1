"""Ringing for work on PostgreSQL: NOTIFY in the statement that enqueues, LISTEN on a connection of its own.

A NOTIFY with every insert would cost most of the insert rate, so a process rings at most once every few milliseconds;
what comes between is made up for at the end of them. Those who listen in the same process hear it at once, and not a
second time when it comes back from the server. Nobody depends on it: a ring that gets lost is made up for by the next
poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable

import asyncpg

from keptwork.errors import StoreError
from keptwork.store.postgres_server import connect
from keptwork.store.url import DatabaseUrl

CHANNEL = "keptwork_jobs"
QUIET_SECONDS = 0.005
RECONNECT_SECONDS = 1.0
PATIENCE_SECONDS = 2.0


class Bell:
    """When to ring, and the listening connection."""

    def __init__(self, url: DatabaseUrl, ring: Callable[[str], Awaitable[None]]) -> None:
        self._url = url
        self._ring = ring
        self._rang_at = 0.0
        self._name = secrets.token_hex(4)
        self._ears: list[Callable[[], None]] = []
        self._later: asyncio.Task[None] | None = None
        self._rings: set[asyncio.Task[None]] = set()

    def due(self) -> str | None:
        """What the next statement should ring with, if it should."""
        now = time.monotonic()
        if now - self._rang_at < QUIET_SECONDS:
            return None
        self._rang_at = now
        return self._name

    def rung(self, *, to_all: bool) -> None:
        """Something was committed: those here hear of it now; the others have been told, or will be soon."""
        for heard in self._ears:
            heard()
        if not to_all and self._later is None:
            self._later = asyncio.create_task(self._ring_later())
            self._rings.add(self._later)
            self._later.add_done_callback(self._rings.discard)

    async def _ring_later(self) -> None:
        try:
            await asyncio.sleep(max(0.0, self._rang_at + QUIET_SECONDS - time.monotonic()))
            self._rang_at = time.monotonic()
            self._later = None  # what comes from here on may come too late for this ring
            await self._ring(self._name)
        except (StoreError, asyncpg.InterfaceError):
            return  # they look by themselves now and then

    async def close(self) -> None:
        """A ring that is under way is waited for: the connection it gets must not come after the pool has ended."""
        if self._later is not None:
            self._later.cancel()
        if self._rings:
            _, late = await asyncio.wait(self._rings, timeout=PATIENCE_SECONDS)
            for ring in late:
                ring.cancel()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever it rings; returns how to stop listening."""
        listening = asyncio.create_task(self._listen(heard))
        self._ears.append(heard)

        def stop() -> None:
            self._ears.remove(heard)
            listening.cancel()

        return stop

    async def _listen(self, heard: Callable[[], None]) -> None:
        while True:
            with contextlib.suppress(StoreError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._listen_once(heard)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen_once(self, heard: Callable[[], None]) -> None:
        def hear(_: object, pid: int, channel: str, ringer: str) -> None:
            if ringer != self._name:  # what was rung here was heard at once
                heard()

        connection, lost = await connect(self._url), asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, hear)
            heard()  # whatever was rung while nobody listened
            await lost.wait()
        finally:
            connection.terminate()
