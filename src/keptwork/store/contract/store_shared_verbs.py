"""Combines all operations whose statements both databases share. Each database adds how it runs a statement."""

from __future__ import annotations

from keptwork.store.contract.access_key_verbs import KeyReads, KeyVerbs
from keptwork.store.contract.agents_transcript_verbs import TranscriptReads, TranscriptVerbs
from keptwork.store.contract.agents_verbs import AgentReads, AgentVerbs
from keptwork.store.contract.budgets_verbs import BudgetReads, BudgetVerbs
from keptwork.store.contract.crews_verbs import CrewReads, CrewVerbs
from keptwork.store.contract.events_seal_verbs import SealReads, SealVerbs
from keptwork.store.contract.outbox_verbs import OutboxReads, OutboxVerbs
from keptwork.store.contract.retention import RetentionReads, RetentionVerbs


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
