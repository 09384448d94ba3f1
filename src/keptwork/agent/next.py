"""What an agent job does after each of its states: go on, try again, or end.

`next(job, outcome)` is pure. It leaves the job it is given as it is; the advanced job comes with the answer:

    step = next(job, Success())
    job = step.job
    match step:
        case Next(state=state): ...
        case Retry(reason=reason): wait = job.retry_config.delay_ms(job.retry_count)
        case Complete(outcome=outcome): ...

Which states there are and which of them may be tried again is the AGENT lifecycle's to say; there is no
second table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from keptwork.lifecycle.agent import AGENT
from keptwork.lifecycle.machine import Change, Verb, decide, insist

CAP_MS = 300_000
"""The longest wait between two calls. Waiting holds nothing, so a provider may ask for minutes."""


class Status(StrEnum):
    """How far an agent job has come, in four words."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Business:
    """Wrong output, validation failure."""

    message: str


@dataclass(frozen=True, slots=True)
class System:
    """Timeout, rate limit, network error."""

    message: str


FailureKind = Business | System
"""Why a state failed. Both kinds may be tried again where the lifecycle allows it."""


@dataclass(frozen=True, slots=True)
class Success:
    """The state did what it is for."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The state did not."""

    kind: FailureKind


Outcome = Success | Failure


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """How often a failed call is made again, and after what wait."""

    max_retries: int = 3
    base_delay_ms: int = 1000

    def delay_ms(self, attempt: int, retry_after_ms: int = 0, cap_ms: int = CAP_MS) -> int:
        """The wait before retry `attempt`, counted from 1: doubled each time, longer if the provider asks.

        >>> [RetryConfig().delay_ms(attempt) for attempt in (1, 2, 3, 4)]
        [1000, 2000, 4000, 8000]
        >>> RetryConfig().delay_ms(1, retry_after_ms=7_500)
        7500
        """
        # Doubled as often as the cap has bits, any wait has reached it: a huge attempt makes no huge number.
        doublings = min(max(attempt - 1, 0), cap_ms.bit_length())
        return min(max(self.base_delay_ms << doublings, retry_after_ms), cap_ms)


@dataclass(frozen=True, slots=True)
class AgentJob:
    """One request to an agent. `state_history` holds each state it has left, a retried one once per try."""

    id: str
    description: str
    status: Status = Status.PENDING
    state: str = AGENT.initial.name
    state_history: tuple[str, ...] = ()
    retry_count: int = 0
    retry_config: RetryConfig = RetryConfig()
    agent: Mapping[str, Any] | None = None
    llm_response: str | None = None
    created_at: int = 0
    updated_at: int = 0


@dataclass(frozen=True, slots=True)
class Next:
    """Go on to another state."""

    state: str
    job: AgentJob = field(repr=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """Try the state again."""

    state: str
    reason: FailureKind
    job: AgentJob = field(repr=False)


@dataclass(frozen=True, slots=True)
class Complete:
    """There is nothing more to do."""

    outcome: Outcome
    job: AgentJob = field(repr=False)


def next(job: AgentJob, outcome: Outcome, *, now: int | None = None) -> Next | Retry | Complete:
    """What follows the outcome of the state the job is in. An ended job has no outcomes: InvalidTransition.

    `now`, in microseconds, becomes the advanced job's `updated_at`.
    """
    change = _decided(job, outcome)
    advanced = _advanced(job, change, now)
    if isinstance(outcome, Failure) and change.move.verb is Verb.RETRY:
        return Retry(advanced.state, outcome.kind, advanced)
    if change.move.target.final:
        return Complete(outcome, advanced)
    return Next(advanced.state, advanced)


def _decided(job: AgentJob, outcome: Outcome) -> Change:
    """A failure is tried again where the lifecycle lets it, and is final where it does not."""
    if isinstance(outcome, Success):
        return insist(decide(AGENT, _record(job), Verb.SUCCEED))
    again = decide(AGENT, _record(job), Verb.RETRY)
    return again if isinstance(again, Change) else insist(decide(AGENT, _record(job), Verb.FAIL))


def _record(job: AgentJob) -> dict[str, Any]:
    """The job as the kernel reads it. Tenant and epoch belong to the row, and decide nothing here."""
    return {
        "id": job.id,
        "tenant_id": 0,
        "state": job.state,
        "seq": len(job.state_history),
        "epoch": 0,
        "retry_count": job.retry_count,
        "max_retries": job.retry_config.max_retries,
    }


def _advanced(job: AgentJob, change: Change, now: int | None) -> AgentJob:
    return replace(
        job,
        status=_status(change),
        state=change.move.target.name,
        state_history=(*job.state_history, job.state),
        retry_count=job.retry_count + (change.move.verb is Verb.RETRY),
        updated_at=job.updated_at if now is None else now,
    )


def _status(change: Change) -> Status:
    if not change.move.target.final:
        return Status.IN_PROGRESS
    return Status.FAILED if change.move.verb is Verb.FAIL else Status.COMPLETED
