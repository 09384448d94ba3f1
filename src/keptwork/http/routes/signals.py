"""Events that jobs wait for: sending them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Writes
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import fails
from keptwork.service import signals as service
from keptwork.store import Store

router = APIRouter(prefix="/api/signals", tags=["signals"])


class NewSignal(Asked):
    """An event for the jobs that wait for it, now or within a week."""

    model_config = example(name="paid", payload={"order": 17}, key="order-17-paid")

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    payload: Any = Field(default=None, description="What they are told.")
    job: str | None = Field(default=None, max_length=LONGEST_KEY, description="Only for this job.")
    key: str | None = Field(default=None, min_length=1, max_length=LONGEST_KEY, description="The same key sends once.")


class Sent(BaseModel):
    """Whether it was sent, or had been before under its key; and how many jobs go on."""

    name: str
    sent: bool
    woken: int


@router.post(
    "",
    status_code=201,
    response_model=Sent,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def send(asked: NewSignal, caller: Writes, does: Does) -> Response:
    """Sends an event to the jobs that wait for it."""

    async def work(store: Store) -> dict[str, Any]:
        sent = await service.send(store, caller.tenant_id, asked.name, asked.payload, job=asked.job, key=asked.key)
        return {"name": asked.name, "sent": sent.new, "woken": sent.woken}

    return await does(asked, work, status=201)
