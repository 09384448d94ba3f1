"""What a worker asks a breaker before a handler that needs it, and what it tells it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from detent.breaker import HOLD, Breaker
from detent.errors import StoreError
from detent.outcomes import Cancel, PermanentError, Snooze, ValidationError
from detent.service import breakers
from detent.service.breakers import Answer, Report
from detent.store import Job, Store
from detent.worker.settlement import Raised, Release, Suspend

UNDECIDED = (Release, Suspend, Snooze, Cancel)
"""What a handler says that does not tell whether what it needs works."""


async def refusal(store: Store, job: Job, breaker: Breaker) -> Release | Raised | None:
    """What becomes of a job instead, if its breaker does not let it go on. One that cannot be asked is asked later."""
    try:
        admission = await breakers.admit(store, job, breaker)
    except StoreError as error:
        return Release(f"its breaker could not be asked: {error}", backs_off=True)
    if admission.goes:
        return None
    if admission.answer is Answer.FAIL:
        return Raised(PermanentError(admission.says))
    return Release(admission.says, held_by=admission.held_by)


def reports(batch: Sequence[tuple[Job, Any]], guarded: Mapping[str, Breaker]) -> list[Report]:
    """What the breakers of these jobs are to be told; `guarded` are the kinds of jobs that have one."""
    return [report_of(job, guarded[job.kind], said) for job, said in batch if job.kind in guarded]


def report_of(job: Job, breaker: Breaker, said: Any) -> Report:
    """What one job has to tell."""
    held = isinstance(said, Release) and said.held_by is not None and said.held_by.startswith(HOLD)
    error = said.described if isinstance(said, Raised) else None
    return Report(job, breaker.name, verdict(said), error, held)


def verdict(said: Any) -> bool | None:
    """Whether what the handler needs works. That a job was stopped, put off or given back says nothing, nor does what
    is wrong with the job itself."""
    if isinstance(said, UNDECIDED):
        return None
    if isinstance(said, Raised):
        own = isinstance(said.error, ValidationError | PermanentError) or said.stage in ("fetch", "input")
        return None if own else False
    return True
