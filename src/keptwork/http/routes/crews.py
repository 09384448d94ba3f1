"""Crews: tasks for several workers, as trees of crews and shares."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Adds, Administers, Reads, Writes
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, Does, Reason, example
from keptwork.http.pages import After, Db, JsonObject, Most, Text, answer, fails, only
from keptwork.http.routes.jobs import Seconds, States
from keptwork.http.trace import Trace
from keptwork.lifecycle import CREW
from keptwork.lifecycle.guards import MAX_DEPTH, MAX_WORKERS
from keptwork.service import crews as service
from keptwork.service import named_crews
from keptwork.service.crew_moves import quotas as quotas_of
from keptwork.service.crews import Inside
from keptwork.service.entities import public_id, states_named
from keptwork.store import Store

router = APIRouter(prefix="/api/crews", tags=["crews"])

LIST = "crews"


class Crew(BaseModel):
    """A crew, as lists show it. `parent_id` is the crew that it is inside of, `asker_id` the job that waits for it."""

    id: str
    state: str
    status: str
    task_description: str
    kind: str | None
    worker_count: int
    depth: int
    parent_id: str | None
    asker_id: str | None
    key: str | None
    reason: str | None
    error: str | None
    actor: str | None
    correlation_id: str | None
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    deadline_at: str | None


class Crews(BaseModel):
    """Some crews, and where to go on if there are more."""

    crews: list[Crew]
    next: str | None


class Share(BaseModel):
    """A job that does one share of a task."""

    id: str
    state: str
    attempts: int
    waits_for: str | None


class WholeCrew(Crew):
    """A crew with what its shares returned, its shares, and the crews inside it."""

    result: list[Any] | None
    shares: list[Share]
    inside: list[WholeCrew]


class NewCrew(Asked):
    """A task for several workers: each gets one share, a job of that kind, called with the payload and with `share`,
    `shares` and `task`."""

    model_config = example(kind="review", task_description="review the release", worker_count=3, timeout="2h")

    kind: Text = Field(min_length=1, max_length=LONGEST_NAME, description="What each share is: a declared job.")
    task_description: Text = Field(min_length=1, max_length=service.LONGEST_TASK)
    worker_count: int = Field(default=1, ge=1, le=MAX_WORKERS)
    payload: JsonObject = Field(default_factory=dict, description="What every share is called with.")
    queue: Text = Field(default="default", min_length=1, max_length=LONGEST_NAME)
    priority: int = Field(default=0, ge=-LARGEST_INT, le=LARGEST_INT)
    max_attempts: int = Field(default=4, ge=1, le=LARGEST_INT)
    parent_id: Text | None = Field(default=None, max_length=LONGEST_KEY, description="The crew it is inside of.")
    key: Text | None = Field(
        default=None, min_length=1, max_length=LONGEST_KEY, description="One crew for ever under this key."
    )
    timeout: str | Seconds | None = Field(default=None, description="Cancelled after this long.")


class SubmittedCrew(Crew):
    """The crew, and whether it was made now; under a key that was used before it is the first one."""

    created: bool


class CancelledCrew(Crew):
    """The crew, and all that ended with it: itself and the crews inside."""

    cancelled: list[str]


class Quota(BaseModel):
    """How many workers the crews of a depth may have, and how many they have."""

    depth: int
    quota: int
    in_use: int


class Quotas(BaseModel):
    """Of every depth."""

    quotas: list[Quota]


class SetQuotas(Asked):
    """How many workers the crews of these depths may have."""

    model_config = example(quotas={"1": 8})

    quotas: dict[str, Annotated[int, Field(ge=1, le=LARGEST_INT)]] = Field(
        min_length=1, max_length=MAX_DEPTH + 1, description="By depth, from 0."
    )


@router.get("", response_model=Crews, responses=fails(errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    state: States = None,
    inside: Annotated[bool, Query(description="Those inside other crews, too.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """The crews of the tenant, the newest first."""
    states = states_named(CREW, state or [])
    page = await service.page(
        store, caller.tenant_id, states=states, inside=inside, after=opened(LIST, after), limit=limit
    )
    return answer({"crews": [crew(row) for row in page.crews], "next": sealed(LIST, page.next)})


@router.post(
    "",
    status_code=201,
    response_model=SubmittedCrew,
    responses=fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight),
)
async def submit(asked: NewCrew, caller: Adds, does: Does, trace: Trace) -> Response:
    """Gives a task to a crew. What makes it impossible, such as a parent that is not there, is on record as its end."""

    async def work(store: Store) -> dict[str, Any]:
        before = await store.now()
        new = await named_crews.new_crew(
            store,
            caller.tenant_id,
            asked.kind,
            asked.payload,
            task=asked.task_description,
            workers=asked.worker_count,
            key=asked.key,
            timeout=asked.timeout,
            queue=asked.queue,
            priority=asked.priority,
            max_attempts=asked.max_attempts,
        )
        parent = None if asked.parent_id is None else service.key_of(asked.parent_id)
        made = await service.submit(store, new._replace(actor=caller.actor, trace_id=trace), Inside(parent))
        row = await service.find(store, caller.tenant_id, public_id(CREW.name, made))
        return {**crew(row), "created": row["created_at"] >= before}

    return await does(asked, work, status=201)


@router.get("/quotas", response_model=Quotas, responses=fails())
async def quotas(caller: Reads, store: Db) -> Response:
    """How many workers the crews of each depth may have, and how many they have."""
    return answer(await _quotas(store, caller.tenant_id))


@router.put("/quotas", response_model=Quotas, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def set_quotas(asked: SetQuotas, caller: Administers, does: Does) -> Response:
    """Sets the quotas of some depths; what is free goes to those who wait."""

    async def work(store: Store) -> dict[str, Any]:
        await service.set_quotas(store, caller.tenant_id, service.quotas_named(asked.quotas))
        return await _quotas(store, caller.tenant_id)

    return await does(asked, work)


@router.get("/{id}", response_model=WholeCrew, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """A crew with its shares, what they returned, and the crews inside it."""
    return answer(service.tree_as_json(await service.tree(store, caller.tenant_id, id)))


@router.post(
    "/{id}/cancel",
    response_model=CancelledCrew,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def cancel(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Cancels a crew, the crews inside it and all their jobs, all at once. What runs is stopped."""
    how = asked or Reason()

    async def work(store: Store) -> dict[str, Any]:
        over = await service.cancel(store, caller.tenant_id, id, reason=how.reason, actor=caller.actor)
        row = await service.find(store, caller.tenant_id, id)
        return {**crew(row), "cancelled": [public_id(CREW.name, key) for key in over]}

    return await does(how, work)


async def _quotas(store: Store, tenant_id: int) -> dict[str, Any]:
    return {"quotas": service.quotas_as_json(await quotas_of(store, tenant_id))}


def crew(row: service.Row) -> dict[str, Any]:
    """A crew as lists show it."""
    return only(Crew, service.as_json(row))
