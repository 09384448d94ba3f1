"""What only this process knows, added up until it is put into the table `counters`.

Calls are counted, not jobs, and in memory: a claim or a batch of results costs one addition. A count is of what was
asked of the store, also in a transaction that was undone. Losing a process loses what it has not yet flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Protocol

from keptwork import metrics
from keptwork.lifecycle.machine import Change
from keptwork.metrics import ENGINE, Metric
from keptwork.store.records import Counter, NewJob, Seen

FLUSH_SECONDS = 10.0
PATIENCE_SECONDS = 2.0

_key = itemgetter(NewJob._fields.index("key"))


class Tally:
    """Counts by tenant, metric and labels; any thread may add to it."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, Metric, tuple[str, ...]], int] = {}
        self._lock = threading.Lock()

    def add(self, metric: Metric, *labels: str, tenant_id: int | None = ENGINE, count: int = 1) -> None:
        """Counts something, unless there is nothing to count."""
        if count:
            key = (tenant_id or ENGINE, metric, labels)
            with self._lock:
                self._counts[key] = self._counts.get(key, 0) + count

    def take(self) -> dict[tuple[int, Metric, tuple[str, ...]], int]:
        """What was counted since it was last taken."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken

    # --- what the stores say

    def enqueued(self, jobs: Sequence[NewJob], offered: Sequence[int], made: Sequence[int]) -> None:
        """Of the jobs that have keys, those that did not get the id they were offered were there before."""
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
    """A store, as far as it is needed here."""

    @property
    def tally(self) -> Tally: ...

    async def count(self, counted: Sequence[Counter]) -> bool: ...


async def flush(store: Counting) -> None:
    """Puts what was counted into the database. Whatever is wrong, the work itself must not fail for it: then it is kept
    for the next time, and counted twice in the one case that only the answer was lost."""
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
    """Now and then, without end."""
    while True:
        await asyncio.sleep(FLUSH_SECONDS)
        await flush(store)
