"""Ringing for work on PostgreSQL: NOTIFY in the statement that enqueues, LISTEN on a connection of its own.

A NOTIFY with every insert would cost most of the insert rate, so a process rings at most once every few milliseconds.
Nobody depends on it: a ring that gets lost is made up for by the next poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import asyncpg

from detent.errors import StoreError
from detent.store.postgres_server import connect
from detent.store.url import DatabaseUrl

CHANNEL = "detent_jobs"
QUIET_SECONDS = 0.005
RECONNECT_SECONDS = 1.0


class Bell:
    """When to ring, and the listening connection."""

    def __init__(self, url: DatabaseUrl) -> None:
        self._url = url
        self._rang_at = 0.0

    def due(self) -> bool:
        """Whether the next statement should ring."""
        now = time.monotonic()
        if now - self._rang_at < QUIET_SECONDS:
            return False
        self._rang_at = now
        return True

    def listen(self, heard: Callable[[], None]) -> Callable[[], None]:
        """Calls back whenever it rings; returns how to stop listening."""
        listening = asyncio.create_task(self._listen(heard))

        def stop() -> None:
            listening.cancel()

        return stop

    async def _listen(self, heard: Callable[[], None]) -> None:
        while True:
            with contextlib.suppress(StoreError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                await self._listen_once(heard)
            await asyncio.sleep(RECONNECT_SECONDS)

    async def _listen_once(self, heard: Callable[[], None]) -> None:
        connection, lost = await connect(self._url), asyncio.Event()
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, lambda *_: heard())
            heard()  # whatever was rung while nobody listened
            await lost.wait()
        finally:
            connection.terminate()
