"""Approval requests of a handler: the handler waits until a reviewer decides."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from keptwork.core.durations import Span, span_us
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LARGEST_PAYLOAD, check_name
from keptwork.errors import ApprovalExpired, ApprovalRejected, BadInput, LeaseLost, NotApproved
from keptwork.flows import approvals
from keptwork.flows.approvals import EXPIRED, LONGEST_COMMENT
from keptwork.jobs.outcome import Suspend
from keptwork.outcomes import PermanentError
from keptwork.store import Job
from keptwork.store.contract.waits_approvals import Approval, NewApproval
from keptwork.workers.children import Ask
from keptwork.workers.parked_waits import Suspended
from keptwork.workers.steps import Steps

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Approved(NamedTuple):
    """An approval: the reviewer, the time, and the comment."""

    by: str
    at: datetime
    comment: str | None


class Approvals:
    """The approval requests of one run."""

    def __init__(self, job: Job, steps: Steps, ask: Ask) -> None:
        self._job = job
        self._steps = steps
        self._ask = ask

    async def wait(self, name: str, question: str, by: str | None, expires: Span | None, details: Any) -> Approved:
        found = await self._steps.recall(name)
        decided = json.loads(found.result) if found else await self._decided(name, question, by, expires, details)
        match decided["decision"]:
            case approvals.APPROVED:
                return Approved(decided["by"], _EPOCH + timedelta(microseconds=decided["at"]), decided["comment"])
            case approvals.REJECTED:
                raise ApprovalRejected(id=decided["id"], by=decided["by"], comment=decided["comment"])
            case approvals.EXPIRED:
                raise ApprovalExpired(id=decided["id"])
        raise NotApproved(id=decided["id"], became=f"was {decided['decision']}")

    async def _decided(self, name: str, question: str, by: str | None, expires: Span | None, details: Any) -> Any:
        approval = await self._asked(_new(name, question, by, expires, details))
        if approval.decision is None and approval.expires_at is not None:
            approval = await self._expired_by_now(approval)
        if approval.decision is None:
            raise Suspended(Suspend(approval.waits_for, approval.expires_at, approval.id))
        told = {"decision": approval.decision, "by": approval.decided_by, "at": approval.decided_at}
        return await self._steps.keep(name, {"id": approval.public_id, **told, "comment": approval.comment})

    async def _asked(self, question: NewApproval) -> Approval:
        approval: Approval | None = await self._ask(self._job, lambda store: store.open_approval(self._job, question))
        if approval is None:
            raise LeaseLost(lifecycle=JOB.name, id=self._job.public_id, trigger="wait for approval")
        return approval

    async def _expired_by_now(self, approval: Approval) -> Approval:
        """Expire the request if it is due by the database's clock. Otherwise it stays unchanged."""
        found: Approval = await self._ask(
            self._job, lambda store: store.decide_approval(approval.tenant_id, approval.id, EXPIRED)
        )
        return found


def _new(name: str, question: str, by: str | None, expires: Span | None, details: Any) -> NewApproval:
    """Return the request. Raise `PermanentError` if it is invalid, because every attempt would be."""
    try:
        if not question.strip() or len(question) > LONGEST_COMMENT:
            raise BadInput(what=f"a question is text of at most {LONGEST_COMMENT} characters")
        if by is not None:
            check_name("approver", by)
        text = None if details is None else json.dumps(details, separators=(",", ":"), sort_keys=True, allow_nan=False)
        if text is not None and len(text) > LARGEST_PAYLOAD:
            raise BadInput(what=f"details of {len(text):,} bytes are over the limit of {LARGEST_PAYLOAD >> 20} MiB")
        return NewApproval(name, question, text, by, None if expires is None else span_us(expires))
    except (BadInput, TypeError, ValueError, RecursionError) as error:
        raise PermanentError(f"what is to be approved cannot be asked: {error}") from None
