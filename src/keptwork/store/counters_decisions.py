"""Decide the moves that operators request. Refusals are counted and name the public ID."""

from __future__ import annotations

from typing import Any

from keptwork.core import metrics
from keptwork.core.decide import Record
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import Change, Lifecycle, decide
from keptwork.errors import InvalidTransition
from keptwork.store import Store

UNDECLARED = "undeclared"


def decided(store: Store, lifecycle: Lifecycle, record: Record, trigger: str, **facts: Any) -> Change:
    """Return the change to write. Raise `InvalidTransition` if the move is not allowed."""
    decision = decide(lifecycle, record, trigger, **facts)
    if isinstance(decision, Change):
        return decision
    # Only declared triggers become labels, because names from outside are unbounded.
    known = trigger if trigger in lifecycle.triggers else UNDECLARED
    store.tally.add(metrics.REFUSED, lifecycle.name, decision.from_state, known, tenant_id=record["tenant_id"])
    raise InvalidTransition(
        lifecycle=lifecycle.name,
        id=public_id(lifecycle.name, record["id"]),
        from_state=decision.from_state,
        trigger=decision.trigger,
        allowed=decision.allowed,
        because=decision.because,
    )
