"""What flows tell to the outside when they end, and what came of telling it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads, Writes
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, Does
from keptwork.http.pages import After, Db, Most, Name, answer, fails
from keptwork.service import webhooks as service
from keptwork.store import Store

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])

LIST = "webhooks"


class Webhook(BaseModel):
    """A message: which move it tells of, where it goes, and what came of it. `secret` is the name of what signs it."""

    id: str
    flow: str
    event: str
    url: str
    secret: str
    state: str
    attempts: int
    most_attempts: int
    created_at: str
    next_at: str | None
    ended_at: str | None
    last_error: str | None


class WholeWebhook(Webhook):
    """A message, and what it says."""

    body: Any


class Webhooks(BaseModel):
    """Some messages, and where to go on if there are more."""

    webhooks: list[Webhook]
    next: str | None


class SentAgain(BaseModel):
    """A message that will be sent once more, and how it stood before."""

    id: str
    was: str
    attempts: int


@router.get("", response_model=Webhooks, responses=fails(errors.NotFound, errors.BadCursor))
async def listing(
    caller: Reads, store: Db, flow: Name = None, state: Name = None, after: After = None, limit: Most = 50
) -> Response:
    """What is told to the outside, the newest first: of one flow or of all, pending, delivered or given_up."""
    return await webhook_page(store, caller.tenant_id, flow, state, after, limit)


@router.get("/{id}", response_model=WholeWebhook, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """One message: where it goes, what it says, what came of it."""
    return answer(service.as_json(await service.find(store, caller.tenant_id, id), whole=True))


@router.post(
    "/{id}/retry",
    response_model=SentAgain,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def retry(id: str, caller: Writes, does: Does, asked: Asked | None = None) -> Response:
    """Sends a message once more, at once and under the same id; also one that was delivered."""

    async def work(store: Store) -> dict[str, Any]:
        before = await service.retry(store, caller.tenant_id, id)
        return {"id": service.as_json(before)["id"], "was": before.state, "attempts": before.attempts}

    return await does(asked or Asked(), work)


async def webhook_page(
    store: Store, tenant_id: int, flow: str | None, state: str | None, after: str | None, limit: int
) -> Response:
    """Some messages."""
    page = await service.page(store, tenant_id, flow=flow, state=state, after=opened(LIST, after), limit=limit)
    shown = [service.as_json(one) for one in page.deliveries]
    return answer({"webhooks": shown, "next": sealed(LIST, page.next)})
