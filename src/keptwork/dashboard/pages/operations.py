"""Pages for operators: approvals, schedules and breakers."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Request
from starlette.responses import Response

from keptwork.access.scopes import approver
from keptwork.core.lifecycles import BREAKER
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.errors import BadInput
from keptwork.flows import approvals
from keptwork.http.auth import Reads, may
from keptwork.http.dependencies import After, Db, opened, sealed
from keptwork.http.routes.approvals import LIST as APPROVAL_LIST
from keptwork.http.routes.approvals import shown as approval_shown
from keptwork.http.routes.breakers import LIST as BREAKER_LIST
from keptwork.http.routes.breakers import Tool
from keptwork.http.routes.events import shown
from keptwork.http.routes.schedules import LIST as SCHEDULE_LIST
from keptwork.jobs import breakers, schedules
from keptwork.store.contract.breakers import BreakerView
from keptwork.store.contract.queues import Schedule
from keptwork.store.contract.waits_approvals import Approval

# The page of approvals, open or decided.


approvals_router = pages("/approvals")

AT_ONCE = 50
CHOICES = (("Open", "open"), ("Decided", "decided"))
TONES = {approvals.APPROVED: "good", approvals.REJECTED: "bad"}


@approvals_router.get("")
async def list_approvals(
    request: Request, caller: Reads, store: Db, show: Literal["open", "decided"] = "open", after: After = None
) -> Response:
    """List the approvals of the tenant, newest first."""
    only_open = show == "open"
    page = await approvals.page(
        store, caller.tenant_id, open_only=only_open, after=opened(APPROVAL_LIST, after), limit=AT_ONCE
    )
    askers = await approvals.askers(store, page.approvals)
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


def asker(asked: Approval, found: approvals.Asker | None) -> dict[str, str | None]:
    """Return what an approval belongs to: its name, and the ID of the flow or job to show."""
    told = approval_shown(asked)
    flow = None if found is None or found.flow is None else found.flow.public_id
    return {"name": None if found is None else found.name, "id": flow or told["job_id"]}


# The page of schedules: rules, next ticks, and pauses.


SHOWN_TICKS = 3

schedules_router = pages("/schedules")


@schedules_router.get("")
async def list_schedules(request: Request, caller: Reads, store: Db, after: After = None) -> Response:
    """List schedules by name."""
    page = await schedules.page(store, caller.tenant_id, after=opened(SCHEDULE_LIST, after))
    now = await store.now()
    return render(
        request,
        caller,
        "schedules.html",
        live=EVERY_2_SECONDS,
        schedules=[_schedule_shown(one, await schedules.flow_named(store, one), now) for one in page.schedules],
        next=sealed(SCHEDULE_LIST, page.next),
        declared=schedules.DECLARED,
    )


def _schedule_shown(schedule: Schedule, flow: str | None, now: int) -> dict[str, Any]:
    """Return a schedule and its next ticks.

    If this host does not know the time zone, there are no ticks, and `unread` says why.
    """
    every = None if schedule.every_us is None else schedules.every(schedule.every_us)
    told: dict[str, Any] = {"every": every, "flow": flow, "upcoming": [], "unread": None}
    shown = {**schedules.as_json(schedule), **told}
    try:
        shown["upcoming"] = schedules.upcoming(schedule, now)[:SHOWN_TICKS]
    except BadInput as error:
        shown["unread"] = str(error)
    return shown


# Pages of circuit breakers: failing services, held jobs, and next probes.


breakers_router = pages("/breakers")


@breakers_router.get("")
async def list_breakers(request: Request, caller: Reads, store: Db, after: After = None) -> Response:
    """List circuit breakers by name."""
    page = await breakers.page(store, caller.tenant_id, after=opened(BREAKER_LIST, after))
    now = await store.now()
    found = [_breaker_shown(one, now) for one in page.breakers]
    return render(
        request, caller, "breakers.html", live=EVERY_2_SECONDS, breakers=found, next=sealed(BREAKER_LIST, page.next)
    )


@breakers_router.get("/{tool:path}")
async def show(request: Request, tool: Tool, caller: Reads, store: Db) -> Response:
    """Show one circuit breaker and its history.

    Counted failures and held jobs are not events of the breaker, so the page polls.
    """
    standing, events = await breakers.show(store, caller.tenant_id, tool)
    return render(
        request,
        caller,
        "breaker.html",
        live=EVERY_2_SECONDS,
        breaker=_breaker_shown(standing, await store.now()),
        events=[shown(event) for event in reversed(events)],
    )


def _breaker_shown(standing: BreakerView, now: int) -> dict[str, Any]:
    told = breakers.as_json(standing)
    told["what_next"] = breakers.what_next(standing, now)
    told["may_reset"] = "reset" in BREAKER.allowed_from(told["state"])
    return told
