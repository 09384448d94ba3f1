"""Renew leases on a separate thread with its own connection, so that a busy handler does not lose its lease.

A lease is renewed after half of its length, by the monotonic clock. A job that is no longer held is reported
immediately. If a lease cannot be renewed because the database is unreachable or does not respond, the job is abandoned
shortly before the lease expires. No other worker can then hold the job while this worker still runs it.

Leases are identified by (job, epoch): if a job comes back to the same worker, that is a different lease.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

from keptwork.core.ids import actor_name
from keptwork.core.lifecycles import WORKER
from keptwork.core.lifecycles.worker import PAUSED
from keptwork.maintenance.periodic import Outage
from keptwork.observability import logs
from keptwork.store import Job, Store
from keptwork.store.contract.records import Standing
from keptwork.workers.registration import Order, understood

# Record that the worker's process is alive, and read the orders in its own row.
#
# It runs on the thread that renews the leases, which has its own connection. A handler that blocks the event loop
# therefore neither makes the worker look dead nor delays an order to end. No lease depends on it.


PULSE_SECONDS = 0.3
OUTAGE_SECONDS = 1.0
BEAT_SECONDS = 1.2
LAST_RESORT_SECONDS = 0.35

log = logging.getLogger("keptwork")

_STANDING = Standing._fields


class Pulse:
    """Liveness and orders of one worker.

    `ordered` is called for each new order, and `resumed` when claims are served again. If a hard order has not been
    executed after `LAST_RESORT_SECONDS`, `last_resort` is called. A worker whose supervisor runs on this host
    (`parent`) ends with it.
    """

    def __init__(
        self,
        worker: int,
        ordered: Callable[[Order], None],
        resumed: Callable[[], None],
        last_resort: Callable[[Store, Order], Awaitable[None]] | None = None,
        parent: int | None = None,
    ) -> None:
        self._worker = worker
        self._ordered = ordered
        self._resumed = resumed
        self._last_resort = last_resort
        self._parent = parent
        self._order: Order | None = None
        self._order_at = 0.0
        self._state = WORKER.initial.name
        self.look_at = time.monotonic() + PULSE_SECONDS
        self._beat_at = self.look_at + BEAT_SECONDS - PULSE_SECONDS

    async def beat(self, store: Store) -> None:
        """Read the worker's row, sometimes update its liveness too, and enforce an overdue hard order."""
        now = time.monotonic()
        self.look_at = now + PULSE_SECONDS
        standing = await (self._be_seen(store, now) if now >= self._beat_at else self._look(store))
        self._note_state(standing)
        self._hear(self._orphaned() or understood(standing))
        overdue = time.monotonic() - self._order_at >= LAST_RESORT_SECONDS
        if self._order is not None and self._order.how == "hard" and overdue and self._last_resort is not None:
            await self._last_resort(store, self._order)

    def put_off(self) -> None:
        """Delay the next check after one that could not reach the database."""
        now = time.monotonic()
        if self.look_at <= now:
            self.look_at = now + OUTAGE_SECONDS

    async def _be_seen(self, store: Store, now: float) -> Standing | None:
        standing = await store.beat(self._worker)
        self._beat_at = now + BEAT_SECONDS
        return standing

    async def _look(self, store: Store) -> Standing | None:
        rows = await store.rows(WORKER, [self._worker], _STANDING)
        return Standing(**rows[0]) if rows else None

    def _orphaned(self) -> Order | None:
        if self._parent is None or os.getppid() == self._parent:
            return None
        return Order("hard", by="supervisor", reason="its supervisor is gone")

    def _hear(self, order: Order | None) -> None:
        if order is None or order == self._order:
            return
        self._order, self._order_at = order, time.monotonic()
        self._ordered(order)
        if order.how == "hard":
            self.look_at = self._order_at + LAST_RESORT_SECONDS

    def _note_state(self, standing: Standing | None) -> None:
        before, self._state = self._state, standing.state if standing else self._state
        if standing is None or before == standing.state or PAUSED.name not in (before, standing.state):
            return
        if standing.actor != f"w:{self._worker}":  # the worker's own pauses are already logged
            said = "paused" if standing.state == PAUSED.name else "going on"
            log.info("%s, as %s wants it: %s", said, actor_name(standing.actor) or "somebody", standing.reason or "–")
        self._resumed()


T = TypeVar("T")

Token = tuple[int, int]
"""A job ID and the epoch of its claim."""

LONGEST_BEAT = 30.0
LOOK_SECONDS = 1.0
SHORTEST_NAP, LONGEST_NAP = 0.02, 0.5
END_SECONDS = 5.0
MARGIN = 0.1  # fraction of a lease that is reserved for clock differences and for stopping
NO_LENGTHS: Mapping[str, int] = {}


@dataclass(slots=True)
class Lease:
    """A lease that this worker holds. `length_us` is the length that a renewal requests; times are monotonic."""

    length_us: int
    look_at: float
    renew_at: float = 0.0
    give_up_at: float = 0.0

    def begin(self, at: float, length_us: int) -> None:
        """Start the lease when the claim or renewal was sent. The database's lease started no earlier."""
        seconds = length_us / 1_000_000
        self.renew_at = at + min(seconds / 2, LONGEST_BEAT)
        self.give_up_at = at + seconds * (1 - MARGIN)

    @property
    def due_at(self) -> float:
        return min(self.look_at, self.renew_at)


class LeaseKeeper:
    """Renews leases on a thread of its own, and calls its callbacks from there."""

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
        """Create the renewer. `watch` is called on its thread at least twice per second."""
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
        """End the thread. A thread that hangs in the network is abandoned and delays nothing."""
        self._stopping = True
        self._wake.set()
        self._thread.join(2 * END_SECONDS)

    def hold(
        self, jobs: Iterable[Job], lease_us: int, claimed_at: float, lengths: Mapping[str, int] = NO_LENGTHS
    ) -> None:
        """Renew the leases of these jobs from now on, each for the length of its kind in `lengths`."""
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
        """Return whether this worker still holds the lease, as far as it knows."""
        return (job.id, job.epoch) in self._leases

    def release(self, tokens: Iterable[Token]) -> None:
        """Forget the leases of completed jobs."""
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
                    self._outage.over("leases")  # no lease is left to renew
                if self._due_at(float("inf")) <= time.monotonic():
                    store = store or await self._opened(opened)
                    if store is not None:
                        await self._unless_too_late(self._beat(store))
                    if self._pulse is not None:
                        self._pulse.put_off()

    async def _opened(self, stack: AsyncExitStack) -> Store | None:
        """Return the store, opened at the first check. A worker that ends immediately never opens it."""
        entered = self._store()
        store = await self._unless_too_late(entered.__aenter__())
        if store is not None:
            stack.push_async_exit(entered)
        return store

    def _nap(self) -> None:
        """Sleep until the next lease or check is due. This thread's loop has no other task meanwhile."""
        now = time.monotonic()
        seconds = min(max(self._due_at(now + LONGEST_NAP) - now, SHORTEST_NAP), LONGEST_NAP)
        self._naps_until = now + seconds
        self._wake.wait(seconds)
        self._wake.clear()

    def _due_at(self, otherwise: float) -> float:
        """Return when the next action is due."""
        first = min((lease.due_at for lease in self._leases_now().values()), default=otherwise)
        return min(first, self._pulse.look_at) if self._pulse is not None else first

    async def _unless_too_late(self, call: Awaitable[T]) -> T | None:
        """Return the result of the call, or None if it failed.

        However long the call takes, no lease outlasts its end.
        """
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
        """Check once per second which jobs were lost and which must stop. Short jobs are never checked."""
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
        """Abandon the leases that cannot be renewed in time, before another worker can claim their jobs."""
        self._forget(token for token, lease in self._leases_now().items() if lease.give_up_at <= now)

    def _forget(self, tokens: Iterable[Token]) -> None:
        with self._lock:
            mine = {token for token in tokens if self._leases.pop(token, None)}
        if mine:
            self._lost(mine)

    def _leases_now(self) -> dict[Token, Lease]:
        with self._lock:
            return dict(self._leases)
