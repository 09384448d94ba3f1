"""Jobs: put one in, find it, stop it, run it again; one or many."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Adds, Reads, Writes
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.pages import After, Db, Most, Name, Search, Text, answer, fails, only
from keptwork.http.routes.events import Moment, Moved, shown
from keptwork.http.trace import Trace
from keptwork.lifecycle import JOB
from keptwork.moments import LONGEST_US, moment_us
from keptwork.service import artifacts, job_steps
from keptwork.service import jobs as service
from keptwork.service.entities import public_id
from keptwork.store import JobFilter, Store

router = APIRouter(prefix="/api/jobs", tags=["jobs"])

LIST = "jobs"

Seconds = Annotated[float, Field(ge=0, le=LONGEST_US / 1_000_000, allow_inf_nan=False)]


class Job(BaseModel):
    """A job, as lists show it."""

    id: str
    state: str
    status: str
    queue: str
    kind: str
    priority: int
    attempts: int
    max_attempts: int
    key: str | None
    reason: str | None
    error: str | None
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    run_at: str
    lease_until: str | None
    owner: str | None
    held_by: str | None
    cancel_requested_at: str | None
    correlation_id: str | None
    trace_id: str | None
    redriven_from: str | None
    epoch: int
    seq: int


class Jobs(BaseModel):
    """Some jobs, and where to go on if there are more."""

    jobs: list[Job]
    next: str | None


class Progress(BaseModel):
    """What a handler said last of how far it has come."""

    fraction: float
    text: str
    at: str


class Checkpoint(BaseModel):
    """What a step of a handler has left."""

    name: str
    at: str
    size: int
    epoch: int


class Artifact(BaseModel):
    """What a job keeps beside its result."""

    name: str
    size: int
    hash: str
    media_type: str
    created_at: str


class WholeJob(Job):
    """A job with everything that is known of it."""

    payload: Any
    result: Any
    waits_for: str | None
    progress: Progress | None
    steps: list[Checkpoint]
    artifacts: list[Artifact]
    redriven_as: list[str]
    events: list[Moved]


class NewJob(Asked):
    """A job to be put into a queue."""

    model_config = example(kind="fetch", payload={"url": "…"}, key="order-17", run_in="5m")

    kind: str = Field(min_length=1, max_length=LONGEST_NAME, description="What to do: the name of a declared job.")
    payload: dict[str, Any] = Field(default_factory=dict, description="The arguments.")
    queue: str = Field(default="default", min_length=1, max_length=LONGEST_NAME)
    priority: int = Field(default=0, ge=-LARGEST_INT, le=LARGEST_INT, description="Higher goes first.")
    key: str | None = Field(
        default=None, min_length=1, max_length=LONGEST_KEY, description="One job for ever under this key."
    )
    run_in: str | Seconds = Field(
        default="0s", description="Not before this has passed: seconds, or a span such as 5m."
    )
    max_attempts: int = Field(default=4, ge=1, le=LARGEST_INT)
    correlation_id: str | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)


class Enqueued(BaseModel):
    """The job, and whether it was made now; under a key that was used before it is the first one's."""

    job: Job
    created: bool


class Cancel(Asked):
    """How a job is to end."""

    model_config = example(reason="no longer wanted")

    hard: bool = Field(default=False, description="Do not wait for a running job to end by itself.")
    reason: Text | None = Field(default=None, max_length=1_000, description="Why; it goes into the event log.")


class Cancelled(BaseModel):
    """What became of it."""

    outcome: str
    job: Job


class Retry(Asked):
    """How a job is to be run again."""

    model_config = example(payload={"url": "…"}, again=False)

    payload: dict[str, Any] | None = Field(default=None, description="Other arguments instead.")
    again: bool = Field(default=False, description="Even if it was run again before.")


class Again(BaseModel):
    """The job that was, and the one that runs it again."""

    old: str
    new: str


States = Annotated[list[str] | None, Query(max_length=20, description="Only in these; may be repeated.")]


@router.get("", response_model=Jobs, responses=fails(errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    state: States = None,
    queue: Name = None,
    kind: Name = None,
    correlation_id: Name = None,
    text: Search = None,
    since: Moment = None,
    until: Moment = None,
    ended_since: Moment = None,
    ended_before: Moment = None,
    after: After = None,
    limit: Most = 50,
    oldest_first: bool = False,
) -> Response:
    """The jobs of the tenant, the newest first, without payloads and results; made in a time, or ended in one."""
    times = {"made_since": since, "made_before": until, "ended_since": ended_since, "ended_before": ended_before}
    states, now = service.states_named(state or []), await store.now() if any(times.values()) else 0
    moments: dict[str, Any] = {name: moment_us(said, now) for name, said in times.items() if said}
    wanted = JobFilter(caller.tenant_id, states, queue, kind, correlation_id, **moments)
    order, place = not oldest_first, opened(LIST, after)
    page = await service.page(store, wanted, after=place, limit=limit, newest_first=order, text=text)
    return answer({"jobs": [job(row) for row in page.jobs], "next": sealed(LIST, page.next)})


@router.post("", status_code=201, response_model=Enqueued, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def enqueue(asked: NewJob, caller: Adds, does: Does, trace: Trace) -> Response:
    """Puts a job into a queue."""

    async def work(store: Store) -> dict[str, Any]:
        before = 0 if asked.key is None else await store.now()  # without one it is a new job
        key = await service.enqueue(
            store,
            caller.tenant_id,
            asked.kind,
            json.dumps(asked.payload),
            queue=asked.queue,
            priority=asked.priority,
            key=asked.key,
            run_in=asked.run_in,
            max_attempts=asked.max_attempts,
            correlation_id=asked.correlation_id,
            trace_id=trace,
            actor=caller.actor,
        )
        row = await service.find(store, caller.tenant_id, public_id(JOB.name, key))
        return {"job": job(row), "created": row["created_at"] >= before}

    return await does(asked, work, status=201)


@router.get("/{id}", response_model=WholeJob, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Everything about one job: its payload and result, what its steps have left, and what happened to it."""
    return answer(whole(await service.show(store, caller.tenant_id, id)))


@router.post(
    "/{id}/cancel",
    response_model=Cancelled,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def cancel(id: str, caller: Writes, does: Does, asked: Annotated[Cancel | None, Body()] = None) -> Response:
    """Ends a job. One that is running is asked to end by itself; `hard` takes it from its worker at once."""
    how = asked or Cancel()

    async def work(store: Store) -> dict[str, Any]:
        done = await service.cancel(store, caller.tenant_id, id, hard=how.hard, reason=how.reason, actor=caller.actor)
        return {"outcome": done.replace(" ", "_"), "job": job(await service.find(store, caller.tenant_id, id))}

    return await does(how, work)


@router.post(
    "/{id}/retry",
    status_code=201,
    response_model=Again,
    responses=fails(
        errors.NotFound, errors.NotRunAgain, errors.RunAgainBefore, errors.KeyReused, errors.RequestInFlight
    ),
)
async def retry(id: str, caller: Adds, does: Does, asked: Annotated[Retry | None, Body()] = None) -> Response:
    """Runs a job that failed, was cancelled or dead-lettered again, as a new job."""
    how = asked or Retry()
    payload = None if how.payload is None else json.dumps(how.payload)

    async def work(store: Store) -> dict[str, Any]:
        new = await service.retry(store, caller.tenant_id, id, payload=payload, again=how.again, actor=caller.actor)
        return {"old": public_id(JOB.name, service.key_of(id)), "new": public_id(JOB.name, new)}

    return await does(how, work, status=201)


def job(row: service.Row) -> dict[str, Any]:
    """A job as lists show it."""
    return only(Job, service.as_json(row))


def whole(story: service.Story) -> dict[str, Any]:
    """A job with everything that is known of it."""
    told = service.as_json(story.job)
    return {
        **only(Job, told),
        "payload": told["payload"],
        "result": told["result"],
        "waits_for": service.waits_for(story.job),
        "progress": job_steps.said_as_json(story.progress),
        "steps": [only(Checkpoint, job_steps.as_json(one)) for one in story.steps],
        "artifacts": [only(Artifact, artifacts.as_json(kept)) for kept in story.artifacts],
        "redriven_as": [public_id(JOB.name, key) for key in story.redriven_as],
        "events": [shown(event) for event in story.events],
    }
