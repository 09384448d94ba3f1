"""Agent jobs as they go into the store and come out of it, beside their rows."""

from __future__ import annotations

from typing import NamedTuple


class AgentAudit(NamedTuple):
    """The record of an agent job that has ended, whatever became of it. Times are microseconds, money is micro-USD;
    `state_transitions` and `agent` are JSON."""

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
        """From its start to its end."""
        return (self.completed_at - self.started_at) // 1_000


AUDIT_COLUMNS = AgentAudit._fields
