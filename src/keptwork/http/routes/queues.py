"""Routes of queues: list, pause, and resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_NAME
from keptwork.http.auth import Reads, Supervises
from keptwork.http.dependencies import After, Db, Most, Text, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does
from keptwork.jobs import limits as service
from keptwork.store import Store

router = APIRouter(prefix="/api/queues", tags=["queues"])

QueueName = Annotated[Text, Path(min_length=1, max_length=LONGEST_NAME)]


class Queue(BaseModel):
    """A queue: its jobs by state, the due time of its oldest due job, and the time since which it is paused."""

    name: str
    jobs: dict[str, int]
    oldest_due_at: str | None
    paused_at: str | None


class Queues(BaseModel):
    """All queues of the tenant."""

    queues: list[Queue]


class Was(BaseModel):
    """A queue after a request to pause or resume it."""

    name: str
    paused: bool
    changed: bool


@router.get("", response_model=Queues, responses=fails())
async def listing(caller: Reads, store: Db) -> Response:
    """List all queues that have jobs or were ever paused."""
    return answer({"queues": [service.queue_json(one) for one in await service.list_queues(store, caller.tenant_id)]})


@router.post("/{name}/pause", response_model=Was, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def pause(name: QueueName, caller: Supervises, does: Does, asked: Asked | None = None) -> Response:
    """Pause a queue. From the next claim, no job is taken from it; running jobs continue."""

    async def work(store: Store) -> dict[str, object]:
        before = await service.pause(store, caller.tenant_id, name)
        return {"name": name, "paused": True, "changed": before.paused_at is None}

    return await does(asked or Asked(), work)


@router.post("/{name}/resume", response_model=Was, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def resume(name: QueueName, caller: Supervises, does: Does, asked: Asked | None = None) -> Response:
    """Resume a queue. From the next claim, its jobs are taken again."""

    async def work(store: Store) -> dict[str, object]:
        before = await service.resume(store, caller.tenant_id, name)
        return {"name": name, "paused": False, "changed": before.paused_at is not None}

    return await does(asked or Asked(), work)


# The route that lists the limits of jobs and queues.


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
