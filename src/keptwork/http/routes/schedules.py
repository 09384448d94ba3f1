"""Routes of schedules: list, show, add, pause, resume, run, and delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.schedule_rules import LONGEST_EXPRESSION, Rule
from keptwork.core.validation import LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Adds, Reads, Writes
from keptwork.http.dependencies import After, Db, JsonObject, Most, Text, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.flows import MOST_INPUTS
from keptwork.http.routes.jobs import Seconds
from keptwork.jobs import schedules as service
from keptwork.store import Store

router = APIRouter(prefix="/api/schedules", tags=["schedules"])

LIST = "schedules"

ScheduleName = Annotated[Text, Path(min_length=1, max_length=LONGEST_KEY)]


class Schedule(BaseModel):
    """A schedule: its rule, its job, and its times. A flow is started by a job of the kind keptwork.start."""

    name: str
    kind: str
    queue: str
    payload: Any
    cron: str | None
    every_us: int | None
    tz: str
    catch_up: str
    declared_by: str
    next_at: str
    last_at: str | None
    paused_at: str | None
    created_at: str
    updated_at: str


class Schedules(BaseModel):
    """A page of schedules, and the cursor of the next page."""

    schedules: list[Schedule]
    next: str | None


class ScheduledJob(BaseModel):
    """A job that a tick enqueued."""

    id: str
    state: str


class WholeSchedule(Schedule):
    """A schedule, its next ticks in its time zone, and the jobs of its last tick."""

    upcoming: list[str]
    last_jobs: list[ScheduledJob]


class NewSchedule(Asked):
    """A schedule for a job or a flow, by a cron expression or an interval."""

    model_config = example(name="nightly", template="release", cron="0 3 * * *", tz="Europe/Berlin")

    name: Text = Field(min_length=1, max_length=LONGEST_KEY)
    kind: Text | None = Field(
        default=None, min_length=1, max_length=LONGEST_NAME, description="Kind of job: the name of a declared job."
    )
    payload: JsonObject = Field(default_factory=dict, description="Arguments of each job.")
    template: Text | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_KEY,
        description="Flow to start instead of a job: a name for the newest version, or the ID of a version.",
    )
    inputs: JsonObject = Field(default_factory=dict, max_length=MOST_INPUTS)
    cron: Text | None = Field(default=None, max_length=LONGEST_EXPRESSION)
    every: Text | Seconds | None = Field(
        default=None, description="Interval instead of `cron`: seconds, or a duration such as 15m."
    )
    tz: Text = Field(default="UTC", max_length=100, description="Time zone of `cron`.")
    queue: Text = Field(default="default", min_length=1, max_length=LONGEST_NAME)
    catch_up: Text = Field(default="latest", max_length=20, description="Missed ticks to fire: latest, all, or none.")


class PausedOrNot(BaseModel):
    """A schedule after a request to pause or resume it."""

    name: str
    paused: bool
    changed: bool


class Deleted(BaseModel):
    """A deleted schedule. The next worker of an application that declares it adds it again."""

    name: str
    deleted: bool
    declared_in_code: bool


class OutOfTurn(BaseModel):
    """A schedule, and the job that was enqueued outside its ticks."""

    name: str
    job: str


CHANGES = fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight)


@router.get("", response_model=Schedules, responses=fails(errors.BadCursor))
async def listing(caller: Reads, store: Db, after: After = None, limit: Most = 50) -> Response:
    """List schedules by name."""
    page = await service.page(store, caller.tenant_id, after=opened(LIST, after), limit=limit)
    shown = [service.as_json(one) for one in page.schedules]
    return answer({"schedules": shown, "next": sealed(LIST, page.next)})


@router.post(
    "",
    status_code=201,
    response_model=Schedule,
    responses=fails(errors.NotFound, errors.ScheduleThere, errors.KeyReused, errors.RequestInFlight),
)
async def add(asked: NewSchedule, caller: Writes, does: Does) -> Response:
    """Add a schedule for a job or a flow."""
    declared = service.Declaration.of(asked.name, Rule.of(asked.cron, asked.every, asked.tz), asked.catch_up)

    async def work(store: Store) -> dict[str, Any]:
        job = await service.wanted(
            store, caller.tenant_id, asked.kind, asked.payload, asked.template, asked.inputs, asked.queue
        )
        return service.as_json(await service.add(store, declared, job, caller.actor))

    return await does(asked, work, status=201)


@router.get("/{name:path}", response_model=WholeSchedule, responses=fails(errors.NotFound))
async def show(name: ScheduleName, caller: Reads, store: Db) -> Response:
    """Show one schedule: its next five ticks in its time zone, and the jobs of its last tick."""
    schedule = await service.find(store, caller.tenant_id, name)
    rows = await service.jobs(store, schedule)
    jobs = [{"id": public_id(JOB.name, row["id"]), "state": row["state"]} for row in rows]
    upcoming = service.upcoming(schedule, await store.now())
    return answer({**service.as_json(schedule), "upcoming": upcoming, "last_jobs": jobs})


@router.post("/{name:path}/pause", response_model=PausedOrNot, responses=CHANGES)
async def pause(name: ScheduleName, caller: Writes, does: Does, asked: Asked | None = None) -> Response:
    """Pause a schedule. Ticks pass without effect until it is resumed; enqueued jobs continue."""

    async def work(store: Store) -> dict[str, Any]:
        before = await service.pause(store, caller.tenant_id, name)
        return {"name": name, "paused": True, "changed": before.paused_at is None}

    return await does(asked or Asked(), work)


@router.post("/{name:path}/resume", response_model=PausedOrNot, responses=CHANGES)
async def resume(name: ScheduleName, caller: Writes, does: Does, asked: Asked | None = None) -> Response:
    """Resume a schedule from its next tick."""

    async def work(store: Store) -> dict[str, Any]:
        before = await service.resume(store, caller.tenant_id, name)
        return {"name": name, "paused": False, "changed": before.paused_at is not None}

    return await does(asked or Asked(), work)


@router.post("/{name:path}/run-now", status_code=201, response_model=OutOfTurn, responses=CHANGES)
async def run_now(name: ScheduleName, caller: Adds, does: Does, asked: Asked | None = None) -> Response:
    """Enqueue the job of a schedule now. Its ticks do not change."""

    async def work(store: Store) -> dict[str, Any]:
        key = await service.run_now(store, caller.tenant_id, name, caller.actor)
        return {"name": name, "job": public_id(JOB.name, key)}

    return await does(asked or Asked(), work, status=201)


@router.delete("/{name:path}", response_model=Deleted, responses=CHANGES)
async def delete(name: ScheduleName, caller: Writes, does: Does, asked: Asked | None = None) -> Response:
    """Delete a schedule. Enqueued jobs stay."""

    async def work(store: Store) -> dict[str, Any]:
        before = await service.delete(store, caller.tenant_id, name)
        return {"name": name, "deleted": True, "declared_in_code": before.declared_by == service.DECLARED}

    return await does(asked or Asked(), work)
