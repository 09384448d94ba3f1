"""Steps of flows, as they come out of the store, and what is asked of people at some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

STEP_COLUMNS = (
    "id", "tenant_id", "flow_id", "parent_id", "lifecycle", "name", "state", "seq", "epoch", "position", "place",
    "retry_count", "max_retries", "attempts", "job_id", "started_at", "completed_at", "updated_at", "error", "reason",
)  # fmt: skip
"""Of a step, everything but what it takes and gives, which may be large."""


class Output(NamedTuple):
    """What came of a step: JSON in the row, or the hash of a blob that holds it. `item` is what it was given."""

    name: str
    state: str
    output: str | None
    output_hash: str | None
    item: str | None = None


class NewGate(NamedTuple):
    """A question that is a step of its own."""

    step_id: int
    tenant_id: int
    step: str
    question: str
    digest: str
    details: str | None = None
    scope: str | None = None
    expires_us: int | None = None


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """Which flows to read; what is none does not narrow. Those inside others are left out unless `inside` says so.
    Times are when they were made: from the one on, and before the other."""

    tenant_id: int | None = None
    states: tuple[str, ...] | None = None
    name: str | None = None
    inside: bool = False
    made_since: int | None = None
    made_before: int | None = None
