"""A free slot of a worker, for the step that comes next."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keptwork.store import Job, NewJob, Transaction

if TYPE_CHECKING:
    from keptwork.service.handover import Picture


@dataclass(slots=True)
class Seat:
    """Where a step ends and just one comes next, a worker that knows of nothing else that is due begins it at once: its
    job is started as it is made, and need not be claimed. Whatever is begun so is found by a claim that is asked for
    again under the same number. `after` is the job that has ended, where it is only one; `pictures` is what the worker
    remembers of flows, by the jobs it has begun."""

    worker: int
    lease_us: int
    claim_id: int
    queues: Container[str]
    tenant_id: int | None = None
    after: Job | None = None
    taken_by: Job | None = None
    pictures: dict[int, Picture] = field(default_factory=dict)

    def is_for(self, job: NewJob) -> bool:
        """Whether it is free, and the worker could be given the job by a claim. What a breaker may hold back goes the
        usual way."""
        own = self.tenant_id is None or self.tenant_id == job.tenant_id
        return own and self.taken_by is None and job.hold_key is None and job.queue in self.queues

    async def take(self, tx: Transaction, job: NewJob) -> None:
        """Makes the job, and starts it here if its queue is served; if not it waits there, and the seat stays free."""
        made = await tx.enqueue_started(job, self.worker, self.lease_us, self.claim_id)
        self.taken_by = made if made.owner == self.worker else None
