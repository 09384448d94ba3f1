"""What an agent job does after each state: continue, retry, or end.

`next(job, outcome)` is pure. It does not change the given job. The result contains the advanced job:

    step = next(job, Success())
    job = step.job
    match step:
        case Next(state=state): ...
        case Retry(reason=reason): wait = job.retry_config.delay_ms(job.retry_count)
        case Complete(outcome=outcome): ...

The AGENT lifecycle declares the states and which of them can be retried. There is no
second table here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from keptwork.core.decide import Change, Verb, decide, insist
from keptwork.core.lifecycles.agent import AGENT

CAP_MS = 300_000
"""The longest wait between two calls. A waiting job holds no resource, so a provider can request minutes."""


class Status(StrEnum):
    """The progress of an agent job in four words."""

    PENDING = "Pending"
    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class Business:
    """Wrong output or a validation failure."""

    message: str


@dataclass(frozen=True, slots=True)
class System:
    """A timeout, rate limit, or network error."""

    message: str


FailureKind = Business | System
"""The reason why a state failed. Both kinds can be retried where the lifecycle allows it."""


@dataclass(frozen=True, slots=True)
class Success:
    """The state succeeded."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The state failed."""

    kind: FailureKind


Outcome = Success | Failure


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """The maximum retries of a failed call, and the wait before each."""

    max_retries: int = 3
    base_delay_ms: int = 1000

    def delay_ms(self, attempt: int, retry_after_ms: int = 0, cap_ms: int = CAP_MS) -> int:
        """Return the wait before retry `attempt`, from 1. It doubles each time, and a provider can request more.

        >>> [RetryConfig().delay_ms(attempt) for attempt in (1, 2, 3, 4)]
        [1000, 2000, 4000, 8000]
        >>> RetryConfig().delay_ms(1, retry_after_ms=7_500)
        7500
        """
        # After as many doublings as the cap has bits, any wait has reached the cap. So a large attempt number needs no
        # large integer.
        doublings = min(max(attempt - 1, 0), cap_ms.bit_length())
        return min(max(self.base_delay_ms << doublings, retry_after_ms), cap_ms)


@dataclass(frozen=True, slots=True)
class AgentJob:
    """One request to an agent. `state_history` has each state that the job has left, a retried one once per attempt."""

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
    """Continue with another state."""

    state: str
    job: AgentJob = field(repr=False)


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry the state."""

    state: str
    reason: FailureKind
    job: AgentJob = field(repr=False)


@dataclass(frozen=True, slots=True)
class Complete:
    """End the job."""

    outcome: Outcome
    job: AgentJob = field(repr=False)


def next(job: AgentJob, outcome: Outcome, *, now: int | None = None) -> Next | Retry | Complete:
    """Return what follows the outcome of the job's state. Raise `InvalidTransition` if the job has ended.

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
    """Return the change for the outcome. A failure is retried if the lifecycle allows it, and is final otherwise."""
    if isinstance(outcome, Success):
        return insist(decide(AGENT, _record(job), Verb.SUCCEED))
    again = decide(AGENT, _record(job), Verb.RETRY)
    return again if isinstance(again, Change) else insist(decide(AGENT, _record(job), Verb.FAIL))


def _record(job: AgentJob) -> dict[str, Any]:
    """Return the job as a record for `decide`. Tenant and epoch belong to the row and have no effect here."""
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
