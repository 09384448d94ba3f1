"""Steps of flows as the store returns them, and the approval requests of some steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

STEP_COLUMNS = (
    "id", "tenant_id", "flow_id", "parent_id", "lifecycle", "name", "state", "seq", "epoch", "position", "place",
    "retry_count", "max_retries", "attempts", "job_id", "started_at", "completed_at", "updated_at", "error", "reason",
)  # fmt: skip
"""The columns of a step without its input and output, which can be large."""


class Output(NamedTuple):
    """The result of a step: JSON in the row, or the hash of a blob that contains it. `item` is its input."""

    name: str
    state: str
    output: str | None
    output_hash: str | None
    item: str | None = None


class NewGate(NamedTuple):
    """The approval request of a flow step."""

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
    """A filter for flows. None does not filter. Flows inside others are excluded unless `inside` is true. `made_since`
    is inclusive and `made_before` exclusive."""

    tenant_id: int | None = None
    states: tuple[str, ...] | None = None
    name: str | None = None
    inside: bool = False
    made_since: int | None = None
    made_before: int | None = None
