"""The worker's own life in the database: registered, at work, ended."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket

from detent.errors import InvalidTransition, StoreError
from detent.lifecycle import WORKER, Verb, decide
from detent.store import Store


class Registration:
    """A worker's row. Each process, and each start of one, is a worker of its own."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.actor = f"w:{id}"
        self._at_work = False

    @classmethod
    async def register(cls, store: Store, name: str) -> Registration:
        host = socket.gethostname()
        return cls(
            await store.create(
                WORKER,
                name=name or f"{host}-{os.getpid()}",
                incarnation=secrets.token_hex(8),
                workspace_id="default",
                host=host,
                pid=os.getpid(),
            )
        )

    async def started(self, store: Store) -> None:
        """From its first claim on it is at work."""
        if not self._at_work:
            await self._move(store, Verb.START, None)
            self._at_work = True

    async def ended(self, store: Store) -> None:
        """Drained: completed if it ever worked, otherwise terminated. A row somebody else ended stays as it is."""
        with contextlib.suppress(StoreError):
            if not await self._move(store, Verb.SUCCEED, "drained"):
                await self._move(store, Verb.TERMINATE, "drained")

    async def _move(self, store: Store, verb: Verb, reason: str | None) -> bool:
        row = await store.get(WORKER, self.id, None)
        if row is None:
            return False
        change = decide(WORKER, row, verb, actor=self.actor, reason=reason)
        return not isinstance(change, InvalidTransition) and not await store.apply([change])
