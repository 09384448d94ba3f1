"""The limits of jobs and queues, and what waits behind them."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads
from keptwork.http.cursors import opened, sealed
from keptwork.http.pages import After, Db, Most, answer, fails
from keptwork.service import limits as service

router = APIRouter(prefix="/api/limits", tags=["limits"])

LIST = "limits"


class Limit(BaseModel):
    """What is counted by itself: how many may run and start, how many do, how many wait, when the next may go. One of
    `all tenants` counts the whole fleet."""

    key: str
    scope: str
    most: int | None
    rate: int | None
    window_us: int | None
    running: int
    waiting: int
    next_at: str | None


class Limits(BaseModel):
    """Some limits, and where to go on if there are more."""

    limits: list[Limit]
    next: str | None


@router.get("", response_model=Limits, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
    """The limits that were declared, what counts against them for this tenant, and what waits."""
    page = await service.page(store, caller.tenant_id, after=opened(LIST, after), limit=limit)
    return answer({"limits": [service.as_json(one) for one in page.limits], "next": sealed(LIST, page.next)})
