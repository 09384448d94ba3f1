"""Shutdown orders for workers, and how a worker reads its order from its row."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from keptwork.core.lifecycles import WORKER
from keptwork.store.contract.records import Standing

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
