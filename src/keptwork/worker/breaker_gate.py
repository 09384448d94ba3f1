"""What a worker asks a breaker before a handler that needs it, and what it tells it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keptwork.breaker import Breaker, hold_of
from keptwork.errors import StoreError
from keptwork.outcomes import Cancel, PermanentError, Snooze
from keptwork.service import breakers
from keptwork.service.breakers import Answer, Report
from keptwork.store import Job, Store
from keptwork.worker.failure import blames_job
from keptwork.worker.parking import Suspended
from keptwork.worker.settlement import Raised, Release, Suspend

UNDECIDED = (Release, Suspend, Snooze, Cancel)
"""What a handler says that does not tell whether what it needs works."""


class Gate:
    """One for all handlers of a worker. It remembers which job has asked which breakers until the job is settled: what
    then is said of the job is told to them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked: dict[tuple[int, int], dict[str, bool | None]] = {}

    async def refusal(self, job: Job, breaker: Breaker) -> Release | Raised | None:
        """What becomes of a job instead, if its breaker does not let it go on. One that cannot be asked is asked
        later."""
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
        """The same from inside a handler: it goes on, or ends here."""
        refused = await self.refusal(job, breaker)
        if isinstance(refused, Release):
            raise Suspended(refused)
        if refused is not None:
            raise refused.error

    def found(self, job: Job, name: str, ok: bool) -> None:
        """What the handler itself found of a breaker it has asked, whatever becomes of the job."""
        self._asked[job.id, job.epoch][name] = ok

    def reports(self, batch: Sequence[tuple[Job, Any]]) -> list[Report]:
        """What is to be told of these jobs, to whom. It is asked once for a job."""
        if not self._asked:
            return []
        return [
            report for job, said in batch for report in _reports(job, self._asked.pop((job.id, job.epoch), {}), said)
        ]


def _reports(job: Job, asked: dict[str, bool | None], said: Any) -> list[Report]:
    """That all works, if the handler succeeded. A failure is laid on the breaker that was asked last: those before had
    let the handler go on to it."""
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
    """Whether what the handler needs works. That a job was stopped, put off or given back says nothing, nor does what
    is wrong with the job itself."""
    if isinstance(said, UNDECIDED):
        return None
    if isinstance(said, Raised):
        own = blames_job(said.error) or said.stage in ("fetch", "input")
        return None if own else False
    return True
