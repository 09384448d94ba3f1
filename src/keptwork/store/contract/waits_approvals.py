"""Approval requests and their decisions."""

from __future__ import annotations

from hashlib import sha256
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.store.contract.records import Job
from keptwork.store.contract.waits import APPROVAL

PREFIX = "apr"


class NewApproval(NamedTuple):
    """An approval request of a job at one of its steps. `scope` is what the reviewer needs, and `expires_us` the time
    to decide."""

    step: str
    question: str
    details: str | None = None
    scope: str | None = None
    expires_us: int | None = None

    @property
    def digest(self) -> str:
        """The hash of the exact request. A decision is valid for no other request."""
        return sha256("\0".join((self.step, self.question, self.details or "")).encode()).hexdigest()


class Approval(NamedTuple):
    """An approval as it is now. Without a decision, it is open. Times are in microseconds."""

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
        """The name of the wait of the job that requested the approval."""
        return f"{APPROVAL}{self.public_id}"


APPROVAL_COLUMNS = Approval._fields


def asked(job: Job, question: NewApproval, id: int) -> dict[str, Any]:
    """Return the request as statement parameters, with the claim under which it is made."""
    claim = {"job_id": job.id, "tenant_id": job.tenant_id, "epoch": job.epoch, "owner": job.owner}
    return {**question._asdict(), **claim, "digest": question.digest, "id": id}
