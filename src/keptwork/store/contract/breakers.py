"""Breakers as the store returns them."""

from __future__ import annotations

from typing import Any, NamedTuple

BREAKER_COLUMNS = (
    "id", "tenant_id", "name", "state", "seq", "epoch", "created_at", "updated_at", "failures", "successes",
    "failure_threshold", "success_threshold", "cooldown_us", "opened_at", "probe_at", "probe_job", "probe_epoch",
    "candidate", "candidate_queue", "candidate_at", "holds", "error", "actor", "reason",
)  # fmt: skip
"""The columns that decisions and displays need."""

Row = dict[str, Any]


class Watched(NamedTuple):
    """A breaker that needs attention: whether jobs that need it are not held yet, whether it holds any jobs, and
    whether its probe is running."""

    row: Row
    unheld: bool
    holding: bool
    probing: bool


class BreakerView(NamedTuple):
    """A breaker with the number of jobs that it holds."""

    row: Row
    held: int
