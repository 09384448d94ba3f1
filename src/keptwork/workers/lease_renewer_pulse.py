"""Record that the worker's process is alive, and read the orders in its own row.

It runs on the thread that renews the leases, which has its own connection. A handler that blocks the event loop
therefore neither makes the worker look dead nor delays an order to end. No lease depends on it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Awaitable, Callable

from keptwork.core.ids_entities import actor_name
from keptwork.core.lifecycles import WORKER
from keptwork.core.lifecycles.worker import PAUSED
from keptwork.store import Store
from keptwork.store.contract.records import Standing
from keptwork.workers.registration_orders import Order, understood

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
