"""Combines all operations whose statements both databases share. Each database adds how it runs a statement."""

from __future__ import annotations

from keptwork.store.agent_verbs import AgentReads, AgentVerbs
from keptwork.store.budget_verbs import BudgetReads, BudgetVerbs
from keptwork.store.crew_verbs import CrewReads, CrewVerbs
from keptwork.store.key_verbs import KeyReads, KeyVerbs
from keptwork.store.outbox_verbs import OutboxReads, OutboxVerbs
from keptwork.store.retention_verbs import RetentionReads, RetentionVerbs
from keptwork.store.seal_verbs import SealReads, SealVerbs
from keptwork.store.transcript_verbs import TranscriptReads, TranscriptVerbs


class SharedReads(
    OutboxReads, TranscriptReads, CrewReads, AgentReads, BudgetReads, KeyReads, SealReads, RetentionReads
):
    """The read operations."""


class SharedVerbs(
    SharedReads,
    OutboxVerbs,
    TranscriptVerbs,
    CrewVerbs,
    AgentVerbs,
    BudgetVerbs,
    KeyVerbs,
    SealVerbs,
    RetentionVerbs,
):
    """The read and write operations."""
