"""The route that lists the limits of jobs and queues."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Most, answer, fails
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.jobs import limits as service

limits_router = APIRouter(prefix="/api/limits", tags=["limits"])

LIST = "limits"


class Limit(BaseModel):
    """A limit: its maximum and rate, the running and waiting jobs, and when the next job can start. The scope `all
    tenants` counts the jobs of all tenants."""

    key: str
    scope: str
    most: int | None
    rate: int | None
    window_us: int | None
    running: int
    waiting: int
    next_at: str | None


class Limits(BaseModel):
    """A page of limits, and the cursor of the next page."""

    limits: list[Limit]
    next: str | None


@limits_router.get("", response_model=Limits, responses=fails(errors.BadCursor), name="listing")
async def list_limits(caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
    """List the declared limits, and the running and waiting jobs of this tenant."""
    page = await service.page(store, caller.tenant_id, after=opened(LIST, after), limit=limit)
    return answer({"limits": [service.as_json(one) for one in page.limits], "next": sealed(LIST, page.next)})
