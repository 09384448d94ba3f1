"""Routes of circuit breakers: list, show, and reset."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_KEY
from keptwork.http.auth import Reads, Supervises
from keptwork.http.dependencies import After, Db, Most, Text, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.events import Moved
from keptwork.http.routes.events import shown as event_shown
from keptwork.jobs import breakers as service
from keptwork.jobs import held_jobs
from keptwork.store import Store

router = APIRouter(prefix="/api/breakers", tags=["breakers"])

LIST = "breakers"

Tool = Annotated[
    Text,
    Path(min_length=1, max_length=LONGEST_KEY, description="Name of the breaker, such as tool:ruff or payments-api."),
]


class Breaker(BaseModel):
    """A circuit breaker: its state, the number of jobs that it holds, and the time of its next probe."""

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
    """A page of circuit breakers, and the cursor of the next page."""

    breakers: list[Breaker]
    next: str | None


class WholeBreaker(Breaker):
    """A circuit breaker and its latest events."""

    events: list[Moved]


class Reset(Asked):
    """A request to close a circuit breaker."""

    model_config = example(reason="the service is back")

    reason: Text = Field(min_length=1, max_length=LONGEST_KEY, description="Reason, recorded in the event log.")


class ResetBreaker(Breaker):
    """The circuit breaker, and how many holds were lifted with it (`let_go`). Workers lift the others."""

    let_go: int


@router.get("", response_model=Breakers, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
    """List circuit breakers by name."""
    page = await service.page(store, caller.tenant_id, after=opened(LIST, after), limit=limit)
    shown = [service.as_json(one) for one in page.breakers]
    return answer({"breakers": shown, "next": sealed(LIST, page.next)})


@router.get("/{tool:path}", response_model=WholeBreaker, responses=fails(errors.NotFound))
async def show(tool: Tool, caller: Reads, store: Db) -> Response:
    """Show one circuit breaker: why it opened, its next probe, and its history."""
    standing, events = await service.show(store, caller.tenant_id, tool)
    return answer({**service.as_json(standing), "events": [event_shown(event) for event in events]})


@router.post(
    "/{tool:path}/reset",
    response_model=ResetBreaker,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def reset(tool: Tool, asked: Reset, caller: Supervises, does: Does) -> Response:
    """Close a circuit breaker and lift its holds."""

    async def work(store: Store) -> dict[str, Any]:
        done = await held_jobs.close(store, caller.tenant_id, tool, actor=caller.actor, reason=asked.reason)
        standing = await service.find(store, caller.tenant_id, tool)
        return {**service.as_json(standing), "let_go": done.let_go}

    return await does(asked, work)
