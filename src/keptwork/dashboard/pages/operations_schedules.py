"""The page of schedules: rules, next ticks, and pauses."""

from __future__ import annotations

from typing import Any

from fastapi import Request
from starlette.responses import Response

from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.errors import BadInput
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.schedules import LIST as SCHEDULE_LIST
from keptwork.jobs import schedules as service
from keptwork.store.contract.queues import Schedule

SHOWN_TICKS = 3

schedules_router = pages("/schedules")


@schedules_router.get("")
async def list_schedules(request: Request, caller: Reads, store: Db, after: After = None) -> Response:
    """List schedules by name."""
    page = await service.page(store, caller.tenant_id, after=opened(SCHEDULE_LIST, after))
    now = await store.now()
    return render(
        request,
        caller,
        "schedules.html",
        live=EVERY_2_SECONDS,
        schedules=[_schedule_shown(one, await service.flow_named(store, one), now) for one in page.schedules],
        next=sealed(SCHEDULE_LIST, page.next),
        declared=service.DECLARED,
    )


def _schedule_shown(schedule: Schedule, flow: str | None, now: int) -> dict[str, Any]:
    """Return a schedule and its next ticks.

    If this host does not know the time zone, there are no ticks, and `unread` says why.
    """
    every = None if schedule.every_us is None else service.every(schedule.every_us)
    told: dict[str, Any] = {"every": every, "flow": flow, "upcoming": [], "unread": None}
    shown = {**service.as_json(schedule), **told}
    try:
        shown["upcoming"] = service.upcoming(schedule, now)[:SHOWN_TICKS]
    except BadInput as error:
        shown["unread"] = str(error)
    return shown
