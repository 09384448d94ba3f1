"""Routes of approvals: list, show, approve, and reject.

The owner of the key is the reviewer in the history. An approval for anyone needs the scope `approve`; an approval for
ops needs `approve:ops`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.flows import approvals as service
from keptwork.http.auth import Approves, Principal, Reads, insist_answerer
from keptwork.http.dependencies import After, Db, Most, Name, Text, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.store import Store
from keptwork.store.contract import waits_approvals as records

router = APIRouter(prefix="/api/approvals", tags=["approvals"])

LIST = "approvals"


class Approval(BaseModel):
    """An approval request. `digest` covers exactly the request and what it would start: a decision applies to nothing
    else."""

    id: str
    state: str
    job_id: str | None
    step_id: str | None
    step: str
    question: str
    details: Any
    digest: str
    scope: str | None
    created_at: str
    expires_at: str | None
    decision: str | None
    decided_at: str | None
    decided_by: str | None
    comment: str | None


class Approvals(BaseModel):
    """A page of approvals, and the cursor of the next page."""

    approvals: list[Approval]
    next: str | None


class Decision(Asked):
    """A decision, with an optional reason."""

    model_config = example(reason="looked at by two of us")

    reason: Text | None = Field(
        default=None, max_length=service.LONGEST_COMMENT, description="Reason, passed to the job or flow."
    )


DECIDES = fails(
    errors.NotFound, errors.AlreadyDecided, errors.ApprovalChanged, errors.KeyReused, errors.RequestInFlight
)


@router.get("", response_model=Approvals, responses=fails(errors.BadCursor, errors.NotFound))
async def listing(
    caller: Reads,
    store: Db,
    job: Name = None,
    all: Annotated[bool, Query(description="Include decided approvals.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """List open approvals, newest first. Select one job, or include decided approvals."""
    found = await service.page(
        store, caller.tenant_id, job=job, open_only=not all, after=opened(LIST, after), limit=limit
    )
    return answer({"approvals": [shown(one) for one in found.approvals], "next": sealed(LIST, found.next)})


@router.get("/{id}", response_model=Approval, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show an approval: the exact request, what it would start, and the decision."""
    return answer(shown(await service.find(store, caller.tenant_id, id)))


@router.post("/{id}/approve", response_model=Approval, responses=DECIDES)
async def approve(id: str, caller: Approves, does: Does, asked: Annotated[Decision | None, Body()] = None) -> Response:
    """Approve a request and resume its job or flow. You can repeat an approval, but you cannot approve a rejected
    request. If the steps that it would start have changed, a new approval replaces it."""
    return await _decide(id, service.APPROVED, caller, does, asked or Decision())


@router.post("/{id}/reject", response_model=Approval, responses=DECIDES)
async def reject(id: str, caller: Approves, does: Does, asked: Annotated[Decision | None, Body()] = None) -> Response:
    """Reject a request. Its job or flow fails unless it handles the rejection."""
    return await _decide(id, service.REJECTED, caller, does, asked or Decision())


async def _decide(id: str, decision: str, caller: Principal, does: Does, how: Decision) -> Response:
    async def work(store: Store) -> dict[str, Any]:
        found = await service.decide(
            store,
            caller.tenant_id,
            id,
            decision,
            by=caller.actor,
            comment=how.reason,
            insist=partial(insist_answerer, caller),
        )
        return shown(found)

    return await does(how, work)


def shown(approval: records.Approval) -> dict[str, Any]:
    """Return an approval as JSON data."""
    return only(Approval, service.as_json(approval))
