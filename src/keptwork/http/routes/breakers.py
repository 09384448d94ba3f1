"""Breakers: what is held back because something it needs does not work, and when it is tried again."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_KEY
from keptwork.http.auth import Reads, Supervises
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import After, Db, Most, Text, answer, fails
from keptwork.http.routes.events import Moved
from keptwork.http.routes.events import shown as event_shown
from keptwork.service import breakers as service
from keptwork.service import held_jobs
from keptwork.store import Store

router = APIRouter(prefix="/api/breakers", tags=["breakers"])

LIST = "breakers"

Tool = Annotated[
    Text, Path(min_length=1, max_length=LONGEST_KEY, description="Its name, such as tool:ruff or payments-api.")
]


class Breaker(BaseModel):
    """A breaker: how it stands, how many jobs it holds back, and when the next one is let through to try."""

    id: str
    name: str
    state: str
    status: str
    failures: int
    failure_threshold: int
    successes: int
    success_threshold: int
    cooldown_us: int
    held: int
    opened_at: str | None
    probe_at: str | None
    probe: str | None
    error: str | None
    updated_at: str


class Breakers(BaseModel):
    """Some breakers, and where to go on if there are more."""

    breakers: list[Breaker]
    next: str | None


class WholeBreaker(Breaker):
    """A breaker, and the last that happened to it."""

    events: list[Moved]


class Reset(Asked):
    """Why a breaker is closed by hand."""

    model_config = example(reason="the service is back")

    reason: Text = Field(min_length=1, max_length=LONGEST_KEY, description="It goes into the event log.")


class ResetBreaker(Breaker):
    """The breaker, and how many jobs were let go with it; workers let the others go."""

    let_go: int


@router.get("", response_model=Breakers, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
    """The breakers of the tenant, by name."""
    page = await service.page(store, caller.tenant_id, after=opened(LIST, after), limit=limit)
    shown = [service.as_json(one) for one in page.breakers]
    return answer({"breakers": shown, "next": sealed(LIST, page.next)})


@router.get("/{tool:path}", response_model=WholeBreaker, responses=fails(errors.NotFound))
async def show(tool: Tool, caller: Reads, store: Db) -> Response:
    """Everything about one breaker: why it opened, when it is tried again, and what happened to it."""
    standing, events = await service.show(store, caller.tenant_id, tool)
    return answer({**service.as_json(standing), "events": [event_shown(event) for event in events]})


@router.post(
    "/{tool:path}/reset",
    response_model=ResetBreaker,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def reset(tool: Tool, asked: Reset, caller: Supervises, does: Does) -> Response:
    """Closes a breaker by hand, and lets go what it holds back."""

    async def work(store: Store) -> dict[str, Any]:
        done = await held_jobs.close(store, caller.tenant_id, tool, actor=caller.actor, reason=asked.reason)
        standing = await service.find(store, caller.tenant_id, tool)
        return {**service.as_json(standing), "let_go": done.let_go}

    return await does(asked, work)
