"""Check the circuit breaker of a handler before it runs, and report the outcome to the breaker afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.errors import StoreError
from keptwork.jobs import breakers
from keptwork.jobs.breaker import Breaker, hold_of
from keptwork.jobs.breakers import Answer, Report
from keptwork.jobs.outcome import Raised, Release, Suspend, blames_job
from keptwork.outcomes import Cancel, PermanentError, Snooze
from keptwork.store import Job, Store
from keptwork.workers.parked_waits import Suspended

UNDECIDED = (Release, Suspend, Snooze, Cancel)
"""Outcomes that do not show whether the protected service works."""


class Gate:
    """The breaker checks of all handlers of a worker.

    It remembers which breakers each job has checked until the job is completed. The outcome of the job is then reported
    to them.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: dict[tuple[int, int], dict[str, bool | None]] = {}

    async def refusal(self, job: Job, breaker: Breaker) -> Release | Raised | None:
        """Return the outcome of a job that its breaker rejects, or None if the job can run. If the breaker cannot be
        read, the job is released and checks again later."""
        try:
            admission = await breakers.admit(self._store, job, breaker)
        except StoreError as error:
            return Release(f"its breaker could not be asked: {error}", backs_off=True)
        self._asked.setdefault((job.id, job.epoch), {})[breaker.name] = None
        if admission.goes:
            return None
        if admission.answer is Answer.FAIL:
            return Raised(PermanentError(admission.says))
        return Release(admission.says, held_by=admission.held_by)

    async def through(self, job: Job, breaker: Breaker) -> None:
        """Check a breaker from inside a handler: return, or end the handler."""
        refused = await self.refusal(job, breaker)
        if isinstance(refused, Release):
            raise Suspended(refused)
        if refused is not None:
            raise refused.error

    def found(self, job: Job, name: str, ok: bool) -> None:
        """Record a result that the handler reports itself for a breaker that it has checked. It overrides the outcome
        of the job."""
        self._asked[job.id, job.epoch][name] = ok

    def reports(self, batch: Sequence[tuple[Job, Any]]) -> list[Report]:
        """Return the reports for these jobs and forget their breakers. Call it once per job."""
        if not self._asked:
            return []
        return [
            report for job, said in batch for report in _reports(job, self._asked.pop((job.id, job.epoch), {}), said)
        ]


def _reports(job: Job, asked: dict[str, bool | None], said: Any) -> list[Report]:
    """Return one report per breaker.

    Success counts for all of them. A failure counts only against the breaker that was checked last, because the handler
    got past those before it.
    """
    held_by = said.held_by if isinstance(said, Release) else None
    error = said.described if isinstance(said, Raised) else None
    meant, last = verdict(said), next(reversed(asked), None)
    return [
        Report(
            job,
            name,
            found if found is not None else meant if meant or name == last else None,
            error,
            held=held_by == hold_of(name),
        )
        for name, found in asked.items()
    ]


def verdict(said: Any) -> bool | None:
    """Return whether the protected service works, or None if the outcome does not show it.

    A job that is cancelled, snoozed, suspended, or released shows nothing, and neither does an error in the job itself.
    """
    if isinstance(said, UNDECIDED):
        return None
    if isinstance(said, Raised):
        own = blames_job(said.error) or said.stage in ("fetch", "input")
        return None if own else False
    return True
