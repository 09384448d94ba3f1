"""The audit record of an agent job as the store keeps it."""

from __future__ import annotations

from typing import NamedTuple


class AgentAudit(NamedTuple):
    """The record of a finished agent job. Times are in microseconds, money is in micro-USD, and `state_transitions` and
    `agent` are JSON."""

    agent_id: int
    tenant_id: int
    job_id: int | None
    description: str
    status: str
    reason: str | None
    state_transitions: str
    agent: str | None
    retry_count: int
    max_retries: int
    calls: int
    cost_micros: int
    input_tokens: int
    output_tokens: int
    llm_response: str | None
    started_at: int
    completed_at: int

    @property
    def duration_ms(self) -> int:
        """Milliseconds from start to end."""
        return (self.completed_at - self.started_at) // 1_000


AUDIT_COLUMNS = AgentAudit._fields
