"""The page of approvals, open or decided."""

from __future__ import annotations

from typing import Literal

from fastapi import Request
from starlette.responses import Response

from keptwork.access.scopes import approver
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.flows import approvals as service
from keptwork.http.auth import Reads, may
from keptwork.http.dependencies import After, Db
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.approvals import LIST as APPROVAL_LIST
from keptwork.http.routes.approvals import shown as approval_shown
from keptwork.store.contract.waits_approvals import Approval

approvals_router = pages("/approvals")

AT_ONCE = 50
CHOICES = (("Open", "open"), ("Decided", "decided"))
TONES = {service.APPROVED: "good", service.REJECTED: "bad"}


@approvals_router.get("")
async def list_approvals(
    request: Request, caller: Reads, store: Db, show: Literal["open", "decided"] = "open", after: After = None
) -> Response:
    """List the approvals of the tenant, newest first."""
    only_open = show == "open"
    page = await service.page(
        store, caller.tenant_id, open_only=only_open, after=opened(APPROVAL_LIST, after), limit=AT_ONCE
    )
    askers = await service.askers(store, page.approvals)
    told = [
        {
            **approval_shown(one),
            "asker": asker(one, askers.get(one.id)),
            "mine": may(caller, approver(one.scope)),
            "tone": TONES.get(one.decision or "", "gone"),
        }
        for one in page.approvals
        if only_open or one.decision is not None
    ]
    return render(
        request,
        caller,
        "approvals.html",
        live=EVERY_2_SECONDS,
        questions=told,
        next=sealed(APPROVAL_LIST, page.next),
        choices=CHOICES,
        chosen=show,
        first=after is None,
    )


def asker(asked: Approval, found: service.Asker | None) -> dict[str, str | None]:
    """Return what an approval belongs to: its name, and the ID of the flow or job to show."""
    told = approval_shown(asked)
    flow = None if found is None or found.flow is None else found.flow.public_id
    return {"name": None if found is None else found.name, "id": flow or told["job_id"]}
