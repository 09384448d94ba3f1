"""Routes of crews: submit, list, show, and cancel crews; show and set quotas."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.guards import MAX_DEPTH, MAX_WORKERS
from keptwork.core.ids import public_id, states_named
from keptwork.core.lifecycles import CREW
from keptwork.core.validation import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.crews import commands as service
from keptwork.crews import commands_named_crews
from keptwork.crews.commands import Inside
from keptwork.crews.engine import quotas as quotas_of
from keptwork.http.auth import Adds, Administers, Reads, Writes
from keptwork.http.dependencies import After, Db, JsonObject, Most, Text, Trace, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Asked, Does, Reason, example
from keptwork.http.routes.jobs import Seconds, States
from keptwork.store import Store

router = APIRouter(prefix="/api/crews", tags=["crews"])

LIST = "crews"


class Crew(BaseModel):
    """A crew, as in lists. `parent_id` is the crew that contains it; `asker_id` is the job that waits for it."""

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
    """A page of crews, and the cursor of the next page."""

    crews: list[Crew]
    next: str | None


class Share(BaseModel):
    """A job that runs one share of a task."""

    id: str
    state: str
    attempts: int
    waits_for: str | None


class WholeCrew(Crew):
    """A crew with the results of its shares, its shares, and its inner crews."""

    result: list[Any] | None
    shares: list[Share]
    inside: list[WholeCrew]


class NewCrew(Asked):
    """A task for several workers. Each worker gets one share: a job of this kind, called with the payload and with
    `share`, `shares`, and `task`."""

    model_config = example(kind="review", task_description="review the release", worker_count=3, timeout="2h")

    kind: Text = Field(min_length=1, max_length=LONGEST_NAME, description="Kind of job of each share: a declared job.")
    task_description: Text = Field(min_length=1, max_length=service.LONGEST_TASK)
    worker_count: int = Field(default=1, ge=1, le=MAX_WORKERS)
    payload: JsonObject = Field(default_factory=dict, description="Arguments of every share.")
    queue: Text = Field(default="default", min_length=1, max_length=LONGEST_NAME)
    priority: int = Field(default=0, ge=-LARGEST_INT, le=LARGEST_INT)
    max_attempts: int = Field(default=4, ge=1, le=LARGEST_INT)
    parent_id: Text | None = Field(default=None, max_length=LONGEST_KEY, description="Crew that contains the new crew.")
    key: Text | None = Field(
        default=None, min_length=1, max_length=LONGEST_KEY, description="Unique key: one crew per key, without expiry."
    )
    timeout: str | Seconds | None = Field(default=None, description="Time after which the crew is cancelled.")


class SubmittedCrew(Crew):
    """The crew. `created` is false if the key was used before: the crew is then the existing one."""

    created: bool


class CancelledCrew(Crew):
    """The crew, and the IDs of all crews that were cancelled with it."""

    cancelled: list[str]


class Quota(BaseModel):
    """The quota of workers of one crew depth, and how many are in use."""

    depth: int
    quota: int
    in_use: int


class Quotas(BaseModel):
    """The quotas of all depths."""

    quotas: list[Quota]


class SetQuotas(Asked):
    """New quotas of workers for some depths."""

    model_config = example(quotas={"1": 8})

    quotas: dict[str, Annotated[int, Field(ge=1, le=LARGEST_INT)]] = Field(
        min_length=1, max_length=MAX_DEPTH + 1, description="Quota by depth, from 0."
    )


@router.get("", response_model=Crews, responses=fails(errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    state: States = None,
    inside: Annotated[bool, Query(description="Include crews inside other crews.")] = False,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """List crews, newest first."""
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
    """Submit a crew: give a task to several workers. An impossible crew, such as one with an unknown parent, is stored
    as a failed crew."""

    async def work(store: Store) -> dict[str, Any]:
        before = await store.now()
        new = await commands_named_crews.named_crew(
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
    """Show the quota of workers at each crew depth, and how many are in use."""
    return answer(await _quotas(store, caller.tenant_id))


@router.put("/quotas", response_model=Quotas, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def set_quotas(asked: SetQuotas, caller: Administers, does: Does) -> Response:
    """Set the quotas of some depths. Free workers go to waiting crews."""

    async def work(store: Store) -> dict[str, Any]:
        await service.set_quotas(store, caller.tenant_id, service.quotas_named(asked.quotas))
        return await _quotas(store, caller.tenant_id)

    return await does(asked, work)


@router.get("/{id}", response_model=WholeCrew, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show a crew with its shares, their results, and its inner crews."""
    return answer(service.tree_as_json(await service.tree(store, caller.tenant_id, id)))


@router.post(
    "/{id}/cancel",
    response_model=CancelledCrew,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def cancel(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Cancel a crew with its inner crews and all their jobs, in one transaction. Running jobs are stopped."""
    how = asked or Reason()

    async def work(store: Store) -> dict[str, Any]:
        over = await service.cancel(store, caller.tenant_id, id, reason=how.reason, actor=caller.actor)
        row = await service.find(store, caller.tenant_id, id)
        return {**crew(row), "cancelled": [public_id(CREW.name, key) for key in over]}

    return await does(how, work)


async def _quotas(store: Store, tenant_id: int) -> dict[str, Any]:
    return {"quotas": service.quotas_as_json(await quotas_of(store, tenant_id))}


def crew(row: service.Row) -> dict[str, Any]:
    """Return a crew as lists show it."""
    return only(Crew, service.as_json(row))
