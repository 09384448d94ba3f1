"""Notifies waiting processes on PostgreSQL: NOTIFY in the statement that enqueues, LISTEN on a connection of its own.

A NOTIFY with every insert would cost most of the insert rate. So a process notifies at most once every few milliseconds
and combines later notifications into one at the end. Subscribers in the same process are called immediately, and not
again when the notification returns from the server. Nothing depends on a notification, since the next poll makes up for
a lost one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable

import asyncpg

from keptwork.errors import StoreError
from keptwork.store.postgres.connections_server import connect
from keptwork.store.url import DatabaseUrl

CHANNEL = "keptwork_jobs"
QUIET_SECONDS = 0.005
RECONNECT_SECONDS = 1.0
PATIENCE_SECONDS = 2.0


class Bell:
    """Decides when to notify, and holds the listening connection."""

    def __init__(self, url: DatabaseUrl, ring: Callable[[str], Awaitable[None]]) -> None:
        self._url = url
        self._ring = ring
        self._rang_at = 0.0
        self._name = secrets.token_hex(4)
        self._ears: list[Callable[[], None]] = []
        self._later: asyncio.Task[None] | None = None
        self._rings: set[asyncio.Task[None]] = set()

    def due(self) -> str | None:
        """Return the payload with which the next statement must notify, or None if it must not."""
        now = time.monotonic()
        if now - self._rang_at < QUIET_SECONDS:
            return None
        self._rang_at = now
        return self._name

    def rung(self, *, to_all: bool) -> None:
        """Notify subscribers of this process after a commit. Other processes were notified by the commit, or will be
        soon."""
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
            self._later = None  # this notification might miss later commits
            await self._ring(self._name)
        except (StoreError, asyncpg.InterfaceError):
            return  # subscribers also poll

    async def close(self) -> None:
        """Stop notifying. Wait for a notification in progress, so that it does not get a connection after the pool is
        closed."""
        if self._later is not None:
            self._later.cancel()
        if self._rings:
            _, late = await asyncio.wait(self._rings, timeout=PATIENCE_SECONDS)
            for ring in late:
                ring.cancel()

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Register a callback for notifications. Return a function that removes it."""
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
            if ringer != self._name:  # subscribers here were already called
                heard()

        connection, lost = await connect(self._url), asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, hear)
            heard()  # a notification might have come while nothing listened
            await lost.wait()
        finally:
            connection.terminate()
