"""All that both databases do by the same statements, put together: what is left to each is how it is asked."""

from __future__ import annotations

from detent.store.agent_verbs import AgentReads, AgentVerbs
from detent.store.budget_verbs import BudgetReads, BudgetVerbs
from detent.store.crew_verbs import CrewReads, CrewVerbs
from detent.store.key_verbs import KeyReads, KeyVerbs
from detent.store.outbox_verbs import OutboxReads, OutboxVerbs
from detent.store.retention_verbs import RetentionReads, RetentionVerbs
from detent.store.seal_verbs import SealReads, SealVerbs
from detent.store.transcript_verbs import TranscriptReads, TranscriptVerbs


class SharedReads(
    OutboxReads, TranscriptReads, CrewReads, AgentReads, BudgetReads, KeyReads, SealReads, RetentionReads
):
    """The reads."""


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
    """The reads and the writes."""
