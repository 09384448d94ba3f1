"""A free slot of a worker, for the step that comes next."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keptwork.store import Job, NewJob, Transaction

if TYPE_CHECKING:
    from keptwork.flows.handover import Picture


@dataclass(slots=True)
class Seat:
    """A worker's free slot for the job of the next step, which then needs no claim.

    If exactly one step comes next, and the worker knows of no other due job, the job starts when it is created. A
    repeated claim with the same `claim_id` returns such jobs. `after` is the job that has finished, if it is only one.
    `pictures` has the worker's snapshots of flows, by the jobs that it has started.
    """

    worker: int
    lease_us: int
    claim_id: int
    queues: Container[str]
    tenant_id: int | None = None
    after: Job | None = None
    taken_by: Job | None = None
    pictures: dict[int, Picture] = field(default_factory=dict)

    def is_for(self, job: NewJob) -> bool:
        """Return whether the slot is free and a claim of this worker could return the job.

        A job that a breaker might hold is enqueued normally.
        """
        own = self.tenant_id is None or self.tenant_id == job.tenant_id
        return own and self.taken_by is None and job.hold_key is None and job.queue in self.queues

    async def take(self, tx: Transaction, job: NewJob) -> None:
        """Create the job, and start it here if its queue is served.

        Otherwise it waits there, and the slot stays free.
        """
        made = await tx.enqueue_started(job, self.worker, self.lease_us, self.claim_id)
        self.taken_by = made if made.owner == self.worker else None
