"""The worker's own life in the database: registered, at work, paused by itself, ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterable, Sequence

from keptwork.errors import InvalidTransition, StoreError
from keptwork.lifecycle import WORKER, Verb, decide
from keptwork.lifecycle.worker import PAUSED
from keptwork.service.orders import DRAINED
from keptwork.store import Store

EXHAUSTED = "resource_exhaustion"
UNRECOVERABLE = "error_unrecoverable"
LONGEST_REASON = 500


class Registration:
    """A worker's row. Each process, and each start of one, is a worker of its own."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.actor = f"w:{id}"
        self._at_work = False

    @classmethod
    async def register(
        cls,
        store: Store,
        name: str,
        *,
        queues: Sequence[str] = (),
        kinds: Iterable[str] = (),
        concurrency: int | None = None,
        version: str = "",
        supervisor: str | None = None,
    ) -> Registration:
        """From here on it counts as alive, and has a heartbeat to miss."""
        host = socket.gethostname()
        serves = {"queues": list(queues), "kinds": sorted(kinds), "concurrency": concurrency, "version": version}
        return cls(
            await store.create(
                WORKER,
                name=name or f"{host}-{os.getpid()}",
                incarnation=secrets.token_hex(8),
                workspace_id="default",
                host=host,
                pid=os.getpid(),
                serves=json.dumps(serves),
                supervisor=supervisor,
                seen_at=await store.now(),
            )
        )

    async def started(self, store: Store) -> None:
        """From its first claim on it is at work."""
        if not self._at_work:
            await self._move(store, Verb.START, None)
            self._at_work = True

    async def pause(self, store: Store, reason: str) -> bool:
        """Whether it could: one that has not begun cannot, and one that was paused already is."""
        return await self._move(store, Verb.PAUSE, f"{EXHAUSTED}: {reason}")

    async def resume(self, store: Store) -> bool:
        """Only from a pause of its own making; one that somebody else wanted is not its to end."""
        row = await store.get(WORKER, self.id, None)
        mine = row is not None and row["state"] == PAUSED.name and row["actor"] == self.actor
        return mine and await self._move(store, Verb.RESUME, f"{EXHAUSTED} is over")

    async def ended(self, store: Store, reason: str = DRAINED) -> None:
        """Drained: completed if it ever worked, otherwise terminated. A row somebody else ended stays as it is."""
        with contextlib.suppress(StoreError):
            if not await self._move(store, Verb.SUCCEED, reason):
                await self._move(store, Verb.TERMINATE, reason)

    async def failed(self, store: Store, error: str) -> None:
        """An error it cannot recover from: failed if it ever worked, otherwise terminated."""
        with contextlib.suppress(StoreError):
            if not await self._move(store, Verb.FAIL, error):
                await self._move(store, Verb.TERMINATE, f"{UNRECOVERABLE}: {error}")

    async def _move(self, store: Store, verb: Verb, reason: str | None) -> bool:
        row = await store.get(WORKER, self.id, None)
        if row is None:
            return False
        change = decide(WORKER, row, verb, actor=self.actor, reason=reason and reason[:LONGEST_REASON])
        return not isinstance(change, InvalidTransition) and not await store.apply([change])
