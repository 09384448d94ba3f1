"""The queues: what waits in them, and whether they are served."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_NAME
from keptwork.http.auth import Reads, Supervises
from keptwork.http.idempotency import Asked, Does
from keptwork.http.pages import Db, Text, answer, fails
from keptwork.service import queues as service
from keptwork.store import Store

router = APIRouter(prefix="/api/queues", tags=["queues"])

QueueName = Annotated[Text, Path(min_length=1, max_length=LONGEST_NAME)]


class Queue(BaseModel):
    """A queue: how many jobs it has in each state, since when one is due, and since when it is paused."""

    name: str
    jobs: dict[str, int]
    oldest_due_at: str | None
    paused_at: str | None


class Queues(BaseModel):
    """Every queue of the tenant."""

    queues: list[Queue]


class Was(BaseModel):
    """A queue after it was paused or resumed."""

    name: str
    paused: bool
    changed: bool


@router.get("", response_model=Queues, responses=fails())
async def listing(caller: Reads, store: Db) -> Response:
    """Every queue that has jobs or was ever paused."""
    return answer({"queues": [service.as_json(one) for one in await service.listing(store, caller.tenant_id)]})


@router.post("/{name}/pause", response_model=Was, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def pause(name: QueueName, caller: Supervises, does: Does, asked: Asked | None = None) -> Response:
    """From the next claim on nothing is taken from the queue; what runs goes on."""

    async def work(store: Store) -> dict[str, object]:
        before = await service.pause(store, caller.tenant_id, name)
        return {"name": name, "paused": True, "changed": before.paused_at is None}

    return await does(asked or Asked(), work)


@router.post("/{name}/resume", response_model=Was, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def resume(name: QueueName, caller: Supervises, does: Does, asked: Asked | None = None) -> Response:
    """From the next claim on the queue is served again."""

    async def work(store: Store) -> dict[str, object]:
        before = await service.resume(store, caller.tenant_id, name)
        return {"name": name, "paused": False, "changed": before.paused_at is not None}

    return await does(asked or Asked(), work)
