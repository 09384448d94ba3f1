"""Keeping leases: a thread of its own with a connection of its own, so that a busy handler keeps its lease.

A lease is renewed when half of it has passed, by the monotonic clock. A job that is no longer held is reported at once;
a job whose lease could not be renewed (the database is out of reach) is given up shortly before the lease ends, so that
nobody else can hold it while this worker still works on it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from detent.errors import StoreError
from detent.store import Job, Store

LONGEST_BEAT = 30.0
LOOK_SECONDS = 1.0
MARGIN = 0.1  # of a lease, kept back for the clock and for stopping


@dataclass(slots=True)
class Lease:
    """A lease this worker holds; times are the monotonic clock's."""

    epoch: int
    length_us: int
    renew_at: float
    give_up_at: float
    look_at: float

    def begin(self, at: float) -> None:
        """From the moment the claim or the renewal was sent: the database's lease began no earlier."""
        seconds = self.length_us / 1_000_000
        self.renew_at = at + min(seconds / 2, LONGEST_BEAT)
        self.give_up_at = at + seconds * (1 - MARGIN)


class LeaseKeeper:
    """Renews what is held, on a thread of its own."""

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        worker: int,
        lost: Callable[[list[int]], None],
        asked_to_stop: Callable[[list[int]], None],
    ) -> None:
        self._open_store = open_store
        self._worker = worker
        self._lost = lost
        self._asked_to_stop = asked_to_stop
        self._leases: dict[int, Lease] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="detent-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def hold(self, jobs: list[Job], lease_us: int, claimed_at: float) -> None:
        """Keeps the leases of these jobs from now on."""
        with self._lock:
            for job in jobs:
                lease = Lease(job.epoch, lease_us, 0, 0, claimed_at + LOOK_SECONDS)
                lease.begin(claimed_at)
                self._leases[job.id] = lease

    def release(self, ids: list[int]) -> None:
        """These jobs are settled."""
        with self._lock:
            for id in ids:
                self._leases.pop(id, None)

    def _run(self) -> None:
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        store: Store | None = None
        while not self._stopping.wait(LOOK_SECONDS / 2):
            now = time.monotonic()
            try:
                if any(lease.look_at <= now for lease in self._leases_now().values()):
                    store = store or await self._open_store()
                    await self._look(store, now)
                    await self._renew(store, now)
            except StoreError:
                self._give_up(time.monotonic())
        if store is not None:
            await store.close()

    def _leases_now(self) -> dict[int, Lease]:
        with self._lock:
            return dict(self._leases)

    async def _look(self, store: Store, now: float) -> None:
        """Once a second: which jobs were taken away, and which were asked to end. Short jobs are never looked at."""
        due = {id: lease for id, lease in self._leases_now().items() if lease.look_at <= now}
        held = await store.held(self._worker, list(due)) if due else {}
        for lease in due.values():
            lease.look_at = now + LOOK_SECONDS
        self._forget([id for id, lease in due.items() if id not in held or held[id].epoch != lease.epoch])
        if stops := [id for id, found in held.items() if found.stop_requested]:
            self._asked_to_stop(stops)

    async def _renew(self, store: Store, now: float) -> None:
        due = {id: lease for id, lease in self._leases_now().items() if lease.renew_at <= now}
        for length in {lease.length_us for lease in due.values()}:
            batch = {id: lease for id, lease in due.items() if lease.length_us == length}
            sent = time.monotonic()
            lost = await store.renew(self._worker, [(id, lease.epoch) for id, lease in batch.items()], length)
            for id in batch.keys() - set(lost):
                batch[id].begin(sent)
            self._forget(lost)

    def _give_up(self, now: float) -> None:
        """The database is out of reach: what cannot be kept any longer is let go before somebody else may take it."""
        self._forget([id for id, lease in self._leases_now().items() if lease.give_up_at <= now])

    def _forget(self, ids: list[int]) -> None:
        with self._lock:
            mine = [id for id in ids if self._leases.pop(id, None)]
        if mine:
            self._lost(mine)
