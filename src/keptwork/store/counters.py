"""Counts of store operations in this process, collected until they are added to the table `counters`.

Calls are counted, not jobs, and in memory, so that a claim or a batch of results costs one addition. Calls in a
transaction that is rolled back also count. A process that dies loses the counts it has not flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Protocol

from keptwork.core import metrics
from keptwork.core.decide import Change
from keptwork.core.metrics import ENGINE, Metric
from keptwork.store.contract.records import Counter, NewJob, Seen

FLUSH_SECONDS = 10.0
PATIENCE_SECONDS = 2.0

_key = itemgetter(NewJob._fields.index("key"))


class Tally:
    """Counts by tenant, metric, and labels. Any thread can add to them."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Metric, tuple[str, ...]], int] = {}
        self._lock = threading.Lock()

    def add(self, metric: Metric, *labels: str, tenant_id: int | None = ENGINE, count: int = 1) -> None:
        """Add to a count, unless the number is zero."""
        if count:
            key = (tenant_id or ENGINE, metric, labels)
            with self._lock:
                self._counts[key] = self._counts.get(key, 0) + count

    def take(self) -> dict[tuple[int, Metric, tuple[str, ...]], int]:
        """Return the counts since the last call, and reset them."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    # --- called by the stores

    def enqueued(self, jobs: Sequence[NewJob], offered: Sequence[int], made: Sequence[int]) -> None:
        """Count the jobs with keys as known or new. A job is known if its ID is not the one that was offered."""
        if any(map(_key, jobs)):
            for job, new, id in zip(jobs, offered, made, strict=True):
                if job.key is not None:
                    self._looked_up("enqueue", job.tenant_id, hit=new != id)

    def recalled(self, tenant_id: int, seen: Seen | None) -> None:
        self._looked_up("request", tenant_id, hit=seen is not None)

    def _looked_up(self, door: str, tenant_id: int, *, hit: bool) -> None:
        self.add(metrics.IDEMPOTENCY, door, "hit" if hit else "miss", tenant_id=tenant_id)

    def claimed(self, jobs: Sequence[object], tenant_id: int | None) -> None:
        self.add(metrics.CLAIM_CALLS, "jobs" if jobs else "empty", tenant_id=tenant_id)

    def late(self, changes: Iterable[Change]) -> None:
        for change in changes:
            names = change.lifecycle.name, change.move.trigger
            self.add(metrics.CONFLICTS, *names, tenant_id=change.tenant_id)

    def renewed(self, asked: int, lost: int) -> None:
        self.add(metrics.RENEWALS, "kept", count=asked - lost)
        self.add(metrics.RENEWALS, "lost", count=lost)


class Counting(Protocol):
    """The part of a store that is used here."""

    @property
    def tally(self) -> Tally: ...

    async def count(self, counted: Sequence[Counter]) -> bool: ...


async def flush(store: Counting) -> None:
    """Add the counts to the database. An error must not fail the work itself, so the counts are then kept for the next
    flush. They are counted twice only if the response of a successful write was lost."""
    taken, written = store.tally.take(), False
    if not taken:
        return
    try:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(PATIENCE_SECONDS):
                counted = (Counter(tenant, m.name, m.key(*labels), n) for (tenant, m, labels), n in taken.items())
                written = await store.count(list(counted))
    finally:
        if not written:
            for (tenant_id, metric, labels), count in taken.items():
                store.tally.add(metric, *labels, tenant_id=tenant_id, count=count)


async def flushing(store: Counting) -> None:
    """Flush the counts at intervals, without end."""
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        await flush(store)
