"""Routes of webhook deliveries: list, show, and resend."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.http.auth import Reads, Writes
from keptwork.http.dependencies import After, Db, Most, Name, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does
from keptwork.store import Store
from keptwork.webhooks import outbox as service

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])

LIST = "webhooks"


class Webhook(BaseModel):
    """A webhook delivery: its move, URL, state, and attempts. `secret` is the name of the signing secret."""

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
    """A webhook delivery with its body."""

    body: Any


class Webhooks(BaseModel):
    """A page of webhook deliveries, and the cursor of the next page."""

    webhooks: list[Webhook]
    next: str | None


class SentAgain(BaseModel):
    """A delivery that will be resent, and its previous state."""

    id: str
    was: str
    attempts: int


@router.get("", response_model=Webhooks, responses=fails(errors.NotFound, errors.BadCursor))
async def listing(
    caller: Reads, store: Db, flow: Name = None, state: Name = None, after: After = None, limit: Most = 50
) -> Response:
    """List webhook deliveries, newest first. Select a flow, or a state: pending, delivered, or given_up."""
    return await webhook_page(store, caller.tenant_id, flow, state, after, limit)


@router.get("/{id}", response_model=WholeWebhook, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show one webhook delivery: its URL, body, attempts, and state."""
    return answer(service.as_json(await service.find(store, caller.tenant_id, id), whole=True))


@router.post(
    "/{id}/retry",
    response_model=SentAgain,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def retry(id: str, caller: Writes, does: Does, asked: Asked | None = None) -> Response:
    """Resend a webhook delivery now, with the same ID, even if it was delivered."""

    async def work(store: Store) -> dict[str, Any]:
        before = await service.retry(store, caller.tenant_id, id)
        return {"id": service.as_json(before)["id"], "was": before.state, "attempts": before.attempts}

    return await does(asked or Asked(), work)


async def webhook_page(
    store: Store, tenant_id: int, flow: str | None, state: str | None, after: str | None, limit: int
) -> Response:
    """Return a page of webhook deliveries."""
    page = await service.page(store, tenant_id, flow=flow, state=state, after=opened(LIST, after), limit=limit)
    shown = [service.as_json(one) for one in page.deliveries]
    return answer({"webhooks": shown, "next": sealed(LIST, page.next)})
