"""Keeping leases: a thread of its own with a connection of its own, so that a busy handler keeps its lease.

A lease is renewed when half of it has passed, by the monotonic clock. A job that is no longer held is reported at once;
a job whose lease could not be renewed (the database is out of reach, or silent) is given up shortly before the lease
ends, so that nobody else can hold it while this worker still works on it.

Leases go by (job, epoch): a job that comes back to the same worker is another lease.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from keptwork import logs
from keptwork.store import Job, Store
from keptwork.worker.outage import Outage
from keptwork.worker.pulse import Pulse

T = TypeVar("T")

Token = tuple[int, int]
"""A job and the epoch it was claimed under."""

LONGEST_BEAT = 30.0
LOOK_SECONDS = 1.0
SHORTEST_NAP, LONGEST_NAP = 0.02, 0.5
END_SECONDS = 5.0
MARGIN = 0.1  # of a lease, kept back for the clock and for stopping
NO_LENGTHS: Mapping[str, int] = {}


@dataclass(slots=True)
class Lease:
    """A lease this worker holds; `length_us` is what a renewal asks for, times are the monotonic clock's."""

    length_us: int
    look_at: float
    renew_at: float = 0.0
    give_up_at: float = 0.0

    def begin(self, at: float, length_us: int) -> None:
        """From the moment the claim or the renewal was sent: the database's lease began no earlier."""
        seconds = length_us / 1_000_000
        self.renew_at = at + min(seconds / 2, LONGEST_BEAT)
        self.give_up_at = at + seconds * (1 - MARGIN)

    @property
    def due_at(self) -> float:
        return min(self.look_at, self.renew_at)


class LeaseKeeper:
    """Renews what is held, on a thread of its own; what it reports, it reports from there."""

    def __init__(
        self,
        store: Callable[[], AbstractAsyncContextManager[Store]],
        worker: int,
        lost: Callable[[set[Token]], None],
        asked_to_stop: Callable[[set[Token]], None],
        outage: Outage | None = None,
        pulse: Pulse | None = None,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """`watch` is called at least twice a second, on the thread."""
        self._store = store
        self._worker = worker
        self._lost = lost
        self._asked_to_stop = asked_to_stop
        self._outage = outage or Outage()
        self._pulse = pulse
        self._watch = watch
        self._leases: dict[Token, Lease] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._naps_until = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="keptwork-leases", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread; one that hangs in the network is left behind, it holds up nobody."""
        self._stopping = True
        self._wake.set()
        self._thread.join(2 * END_SECONDS)

    def hold(
        self, jobs: Iterable[Job], lease_us: int, claimed_at: float, lengths: Mapping[str, int] = NO_LENGTHS
    ) -> None:
        """Keeps the leases of these jobs from now on, renewed for as long as their kind asks in `lengths`."""
        look_at, due_at = claimed_at + LOOK_SECONDS, float("inf")
        with self._lock:
            for job in jobs:
                lease = Lease(lengths.get(job.kind, lease_us), look_at)
                lease.begin(claimed_at, lease_us)
                due_at = lease.due_at
                self._leases[job.id, job.epoch] = lease
        if due_at < self._naps_until:
            self._wake.set()

    def holds(self, job: Job) -> bool:
        """Whether this lease is still ours, as far as is known."""
        return (job.id, job.epoch) in self._leases

    def release(self, tokens: Iterable[Token]) -> None:
        """These jobs are settled."""
        with self._lock:
            for token in tokens:
                self._leases.pop(token, None)

    # --- on the thread

    def _run(self) -> None:
        logs.worker.set(self._worker)
        asyncio.run(self._keep())

    async def _keep(self) -> None:
        async with AsyncExitStack() as opened:
            store: Store | None = None
            while not self._stopping:
                self._nap()
                self._watch()
                if self._pulse is None and not self._leases_now():
                    self._outage.over("leases")  # there is nothing left to keep
                if self._due_at(float("inf")) <= time.monotonic():
                    store = store or await self._opened(opened)
                    if store is not None:
                        await self._unless_too_late(self._beat(store))
                    if self._pulse is not None:
                        self._pulse.put_off()

    async def _opened(self, stack: AsyncExitStack) -> Store | None:
        """The store, opened when there is first something to look at; a worker that ends at once does without."""
        entered = self._store()
        store = await self._unless_too_late(entered.__aenter__())
        if store is not None:
            stack.push_async_exit(entered)
        return store

    def _nap(self) -> None:
        """Until the next lease or look is due. Nothing else is under way on this thread's loop meanwhile."""
        now = time.monotonic()
        seconds = min(max(self._due_at(now + LONGEST_NAP) - now, SHORTEST_NAP), LONGEST_NAP)
        self._naps_until = now + seconds
        self._wake.wait(seconds)
        self._wake.clear()

    def _due_at(self, otherwise: float) -> float:
        """When something is next to be done."""
        first = min((lease.due_at for lease in self._leases_now().values()), default=otherwise)
        return min(first, self._pulse.look_at) if self._pulse is not None else first

    async def _unless_too_late(self, call: Awaitable[T]) -> T | None:
        """What the call returned; none if it failed. However long it takes, no lease is held past its end."""
        task = asyncio.ensure_future(call)
        while not task.done() and not self._stopping:
            await asyncio.wait({task}, timeout=self._patience())
            self._watch()
            if not task.done() or task.exception() is not None:
                self._give_up(time.monotonic())
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=END_SECONDS)
        if not task.done() or task.cancelled():
            return None
        if error := task.exception():
            self._outage.note("leases", error)
            return None
        self._outage.over("leases")
        return task.result()

    def _patience(self) -> float:
        now = time.monotonic()
        first = min((lease.give_up_at for lease in self._leases_now().values()), default=now + LONGEST_NAP)
        return min(max(first - now, SHORTEST_NAP), LONGEST_NAP)

    async def _beat(self, store: Store) -> None:
        now = time.monotonic()
        await self._look(store, now)
        await self._renew(store, now)
        if self._pulse is not None and self._pulse.look_at <= now:
            await self._pulse.beat(store)

    async def _look(self, store: Store, now: float) -> None:
        """Once a second: which jobs were taken away, and which were asked to end. Short jobs are never looked at."""
        due = {token: lease for token, lease in self._leases_now().items() if lease.look_at <= now}
        held = await store.held(self._worker, [id for id, _ in due]) if due else {}
        for lease in due.values():
            lease.look_at = now + LOOK_SECONDS
        self._forget(token for token in due if token[0] not in held or held[token[0]].epoch != token[1])
        stops = {(id, found.epoch) for id, found in held.items() if found.stop_requested}
        if stops:
            self._asked_to_stop(stops)

    async def _renew(self, store: Store, now: float) -> None:
        due = {token: lease for token, lease in self._leases_now().items() if lease.renew_at <= now}
        for length_us in {lease.length_us for lease in due.values()}:
            await self._renew_alike(store, [token for token in due if due[token].length_us == length_us], length_us)

    async def _renew_alike(self, store: Store, tokens: Sequence[Token], length_us: int) -> None:
        sent = time.monotonic()
        lost = set(await store.renew(self._worker, tokens, length_us))
        with self._lock:
            for token in tokens:
                if token not in lost and token in self._leases:
                    self._leases[token].begin(sent, length_us)
        self._forget(lost)

    def _give_up(self, now: float) -> None:
        """What cannot be kept any longer is let go before somebody else may take it."""
        self._forget(token for token, lease in self._leases_now().items() if lease.give_up_at <= now)

    def _forget(self, tokens: Iterable[Token]) -> None:
        with self._lock:
            mine = {token for token in tokens if self._leases.pop(token, None)}
        if mine:
            self._lost(mine)

    def _leases_now(self) -> dict[Token, Lease]:
        with self._lock:
            return dict(self._leases)
