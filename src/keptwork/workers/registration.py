"""The worker's own row in the database: registered, started, paused by itself, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from keptwork.core.lifecycles import WORKER, Verb, decide
from keptwork.core.lifecycles.worker import PAUSED
from keptwork.errors import InvalidTransition, StoreError
from keptwork.maintenance.retention import Retention
from keptwork.store import Store
from keptwork.store.contract.records import Standing
from keptwork.workers.supervisor_link import Bond

# The settings of a worker.


SILENT_US = 60_000_000
KEEP_AS_USUAL = Retention()


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a worker. Times are in microseconds.

    If `lease_us` is None, each kind of job has its own lease. A handler in its own process finds its application's jobs
    in `database`. A worker that has lost `most_stuck` threads (default: half the number of its slots) ends, to be
    replaced. A worker that uses more than `most_memory` bytes pauses. Workers without a heartbeat for `silent_us` are
    terminated. A worker with `own_process` can end its process. With a `bond`, it ends with its supervisor. A `remote`
    worker has no database, and its server does the maintenance.
    """

    queues: Sequence[str] = ("default",)
    concurrency: int = 32
    name: str = ""
    tenant_id: int | None = None
    lease_us: int | None = None
    grace_us: int = 30_000_000
    retention: Retention = KEEP_AS_USUAL
    database: str | None = None
    most_stuck: int | None = None
    most_memory: int | None = None
    silent_us: int = SILENT_US
    own_process: bool = False
    bond: Bond | None = None
    version: str = ""
    remote: bool = False


# Shutdown orders for workers, and how a worker reads its order from its row.


How = Literal["drain", "soft", "hard"]
Jobs = Literal["release", "cancel"]

DRAINED = "drained"
"""Reason in the row of a worker that ended after it had finished its jobs."""


class Order(NamedTuple):
    """A shutdown order.

    Interrupted jobs are released or cancelled.

    - `drain`: finish the running jobs, however long that takes.
    - `soft`: finish them within the worker's grace period, then end as with `hard`.
    - `hard`: end immediately.
    """

    how: How
    jobs: Jobs = "release"
    by: str | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """The order as the worker's row stores it."""
        return json.dumps(self._asdict(), ensure_ascii=False)

    @classmethod
    def of(cls, text: str | None) -> Order | None:
        """Return the order in a row, or None if the text is not one, such as a manual edit."""
        try:
            found = json.loads(text or "null")
            order = cls(found["how"], found.get("jobs", "release"), found.get("by"), found.get("reason"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return order if order.how in ("drain", "soft", "hard") else None


def understood(standing: Standing | None) -> Order | None:
    """Return the order that a worker must follow, by its row. A worker whose row has ended must end."""
    if standing is None:
        return Order("hard", reason="its row is gone")
    order = Order.of(standing.ending)
    if not WORKER.state(standing.state).final:
        return order if order is not None and order.how == "drain" else None
    if order is not None and order.how != "drain":
        return order
    return Order("hard", by=standing.actor, reason=standing.reason)


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
