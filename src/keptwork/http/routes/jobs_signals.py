"""The route that sends signals to waiting jobs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Writes
from keptwork.http.dependencies import fails
from keptwork.http.idempotency import Asked, Does, example
from keptwork.jobs import commands_signals as service
from keptwork.store import Store

signals_router = APIRouter(prefix="/api/signals", tags=["signals"])


class NewSignal(Asked):
    """A signal for the jobs that wait for it now or within a week."""

    model_config = example(name="paid", payload={"order": 17}, key="order-17-paid")

    name: str = Field(min_length=1, max_length=LONGEST_NAME)
    payload: Any = Field(default=None, description="Payload of the signal.")
    job: str | None = Field(default=None, max_length=LONGEST_KEY, description="Only for this job.")
    key: str | None = Field(
        default=None, min_length=1, max_length=LONGEST_KEY, description="Unique key: a repeated key sends nothing."
    )


class Sent(BaseModel):
    """The outcome: whether the signal was sent, or was sent before with its key, and how many jobs resume (`woken`)."""

    name: str
    sent: bool
    woken: int


@signals_router.post(
    "",
    status_code=201,
    response_model=Sent,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def send(asked: NewSignal, caller: Writes, does: Does) -> Response:
    """Send a signal to the jobs that wait for it."""

    async def work(store: Store) -> dict[str, Any]:
        sent = await service.send(store, caller.tenant_id, asked.name, asked.payload, job=asked.job, key=asked.key)
        return {"name": asked.name, "sent": sent.new, "woken": sent.woken}

    return await does(asked, work, status=201)
