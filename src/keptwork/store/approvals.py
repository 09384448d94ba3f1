"""Questions to people, and what they decided."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

from keptwork import ids
from keptwork.store.records import Job
from keptwork.store.wakes import APPROVAL

PREFIX = "apr"


class NewApproval(NamedTuple):
    """A question a job asks at one of its steps; `scope` is who may answer, `expires_us` for how long."""

    step: str
    question: str
    details: str | None = None
    scope: str | None = None
    expires_us: int | None = None

    @property
    def digest(self) -> str:
        """Of exactly what is asked: a decision holds for nothing else."""
        return sha256("\0".join((self.step, self.question, self.details or "")).encode()).hexdigest()


class Approval(NamedTuple):
    """A question as it stands; without a decision it is open. Times are microseconds."""

    id: int
    tenant_id: int
    job_id: int | None
    step: str
    question: str
    details: str | None
    digest: str
    scope: str | None
    created_at: int
    expires_at: int | None
    decision: str | None
    decided_at: int | None
    decided_by: str | None
    comment: str | None
    step_id: int | None = None

    @property
    def public_id(self) -> str:
        return ids.public(PREFIX, self.id)

    @property
    def waits_for(self) -> str:
        """What the job that asks waits for."""
        return f"{APPROVAL}{self.public_id}"


APPROVAL_COLUMNS = Approval._fields


def asked(job: Job, question: NewApproval, id: int) -> dict[str, Any]:
    """As the statements take it, with the claim under which it is asked."""
    claim = {"job_id": job.id, "tenant_id": job.tenant_id, "epoch": job.epoch, "owner": job.owner}
    return {**question._asdict(), **claim, "digest": question.digest, "id": id}
