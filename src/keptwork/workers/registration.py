"""The worker's own row in the database: registered, started, paused by itself, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterable, Sequence

from keptwork.core.lifecycles import WORKER, Verb, decide
from keptwork.core.lifecycles.worker import PAUSED
from keptwork.errors import InvalidTransition, StoreError
from keptwork.store import Store
from keptwork.workers.registration_orders import DRAINED

EXHAUSTED = "resource_exhaustion"
UNRECOVERABLE = "error_unrecoverable"
LONGEST_REASON = 500


class Registration:
    """A worker's row. Each process, and each start of one, is a separate worker."""

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
        """Create the row. From here on the worker counts as alive, and its heartbeat can be overdue."""
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
        """Move the worker to running at its first claim."""
        if not self._at_work:
            await self._move(store, Verb.START, None)
            self._at_work = True

    async def pause(self, store: Store, reason: str) -> bool:
        """Return whether the worker moved to paused. It cannot if it has not started or is already paused."""
        return await self._move(store, Verb.PAUSE, f"{EXHAUSTED}: {reason}")

    async def resume(self, store: Store) -> bool:
        """Return whether the worker resumed. It resumes only a pause that it set itself, not an operator's."""
        row = await store.get(WORKER, self.id, None)
        mine = row is not None and row["state"] == PAUSED.name and row["actor"] == self.actor
        return mine and await self._move(store, Verb.RESUME, f"{EXHAUSTED} is over")

    async def ended(self, store: Store, reason: str = DRAINED) -> None:
        """Record the shutdown: completed if the worker ever ran, otherwise terminated.

        A finished row stays unchanged.
        """
        with contextlib.suppress(StoreError):
            if not await self._move(store, Verb.SUCCEED, reason):
                await self._move(store, Verb.TERMINATE, reason)

    async def failed(self, store: Store, error: str) -> None:
        """Record an unrecoverable error: failed if the worker ever ran, otherwise terminated."""
        with contextlib.suppress(StoreError):
            if not await self._move(store, Verb.FAIL, error):
                await self._move(store, Verb.TERMINATE, f"{UNRECOVERABLE}: {error}")

    async def _move(self, store: Store, verb: Verb, reason: str | None) -> bool:
        row = await store.get(WORKER, self.id, None)
        if row is None:
            return False
        change = decide(WORKER, row, verb, actor=self.actor, reason=reason and reason[:LONGEST_REASON])
        return not isinstance(change, InvalidTransition) and not await store.apply([change])
