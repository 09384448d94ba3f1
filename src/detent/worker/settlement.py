"""From what a handler said to the move its job makes: pure, with chance passed in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from detent.job_type import JobType
from detent.lifecycle import JOB, Change, decide, insist
from detent.moments import span_us
from detent.outcomes import Cancel, PermanentError, Snooze, ValidationError
from detent.store import Job

Chance = Callable[[], float]

LONGEST_ERROR = 4000
DEFAULT_BACKOFF_US = (500_000, 60_000_000)


@dataclass(frozen=True, slots=True)
class Release:
    """The worker gives the job back unfinished; the attempt is not spent."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised; `stage` is how far it had got: fetch, input, exec, output or commit."""

    error: BaseException
    stage: str = "exec"


def settle(job: Job, kind: JobType | None, said: Any, chance: Chance, actor: str) -> Change:
    """The move that follows from what was said, decided as the holder of the lease."""
    if isinstance(said, Raised):
        return _settle_error(job, kind, said, chance, actor)
    if isinstance(said, Snooze):
        return _decided(job, "snooze", actor, values={"delay_us": span_us(said.delay)})
    if isinstance(said, Release):
        return _decided(job, "release", actor, reason="worker drains", values={"delay_us": 0})
    if isinstance(said, Cancel):
        return _decided(job, "cancel", actor, reason=said.reason or None)
    try:
        result = None if said is None else json.dumps(said, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        return _settle_error(
            job, kind, Raised(PermanentError(f"the result is no JSON: {error}"), "output"), chance, actor
        )
    return _decided(job, "succeed", actor, values={"result": result})


def backoff_us(kind: JobType | None, attempt: int, chance: Chance) -> int:
    """How long to wait before the next attempt: anything up to twice as long each time, so that crowds disperse."""
    base, cap = (kind.backoff_us, kind.backoff_cap_us) if kind else DEFAULT_BACKOFF_US
    longest = min(base << min(attempt - 1, 40), cap)
    return round(longest * chance())


def _settle_error(job: Job, kind: JobType | None, raised: Raised, chance: Chance, actor: str) -> Change:
    error = f"{type(raised.error).__name__}: {raised.error}"[:LONGEST_ERROR]
    if isinstance(raised.error, ValidationError):
        return _dead_letter(job, "validation_failed", "input", error, actor)
    if isinstance(raised.error, PermanentError):
        return _decided(job, "fail", actor, permanent=True, reason=error, values={"error": error})
    if job.attempts < job.max_attempts:
        values = {"error": error, "delay_us": backoff_us(kind, job.attempts, chance)}
        return _decided(job, "retry", actor, reason=error, values=values)
    if job.on_exhausted == "fail":
        return _decided(job, "fail", actor, reason=error, values={"error": error})
    code = "timeout" if isinstance(raised.error, TimeoutError) else "exhausted_retries"
    return _dead_letter(job, code, raised.stage, error, actor)


def _dead_letter(job: Job, code: str, stage: str, error: str, actor: str) -> Change:
    detail = json.dumps({"stage": stage})
    return _decided(job, "dead_letter", actor, reason=code, reason_code=code, detail=detail, values={"error": error})


def _decided(job: Job, trigger: str, actor: str, **facts: Any) -> Change:
    return insist(decide(JOB, job, trigger, token=job.token, actor=actor, **facts))
