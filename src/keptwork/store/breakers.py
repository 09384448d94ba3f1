"""Breakers, as they come out of the store."""

from __future__ import annotations

from typing import Any, NamedTuple

BREAKER_COLUMNS = (
    "id", "tenant_id", "name", "state", "seq", "epoch", "created_at", "updated_at", "failures", "successes",
    "failure_threshold", "success_threshold", "cooldown_us", "opened_at", "probe_at", "probe_job", "probe_epoch",
    "candidate", "candidate_queue", "candidate_at", "holds", "error", "actor", "reason",
)  # fmt: skip
"""Everything that is decided on, and what people want to know."""

Row = dict[str, Any]


class Watched(NamedTuple):
    """A breaker to look after: whether jobs that need it are not held back yet, whether it holds any back, and whether
    its probe is at work."""

    row: Row
    unheld: bool
    holding: bool
    probing: bool


class BreakerView(NamedTuple):
    """A breaker, and how many jobs it holds back."""

    row: Row
    held: int
