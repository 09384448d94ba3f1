"""How a worker is asked to come to an end, and how it understands what it reads of itself."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from keptwork.lifecycle import WORKER
from keptwork.store.records import Standing

How = Literal["drain", "soft", "hard"]
Jobs = Literal["release", "cancel"]

DRAINED = "drained"
"""Why a worker ended that was asked to finish what it had begun."""


class Order(NamedTuple):
    """`drain`: finish what has begun, however long it takes. `soft`: the same within its grace, then hard. `hard`: at
    once. Jobs that are cut short are released or cancelled."""

    how: How
    jobs: Jobs = "release"
    by: str | None = None
    reason: str | None = None

    @property
    def text(self) -> str:
        """As the worker's row keeps it."""
        return json.dumps(self._asdict(), ensure_ascii=False)

    @classmethod
    def of(cls, text: str | None) -> Order | None:
        """What a row says; what is no order, a hand has typed: none."""
        try:
            found = json.loads(text or "null")
            order = cls(found["how"], found.get("jobs", "release"), found.get("by"), found.get("reason"))
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return order if order.how in ("drain", "soft", "hard") else None


def understood(standing: Standing | None) -> Order | None:
    """What a worker has to do, going by its row. One that somebody ended is over, whatever else was asked of it."""
    if standing is None:
        return Order("hard", reason="its row is gone")
    order = Order.of(standing.ending)
    if not WORKER.state(standing.state).final:
        return order if order is not None and order.how == "drain" else None
    if order is not None and order.how != "drain":
        return order
    return Order("hard", by=standing.actor, reason=standing.reason)
