"""Routes of jobs: enqueue, list, show, cancel, and rerun."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Body, Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.durations import LONGEST_US, moment_us
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Adds, Reads, Writes
from keptwork.http.dependencies import After, Db, Most, Name, Search, Text, Trace, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.events import Moment, Moved, shown
from keptwork.jobs import commands_signals, queries, results_artifacts
from keptwork.jobs import queries as jobs
from keptwork.store import JobFilter, Store

router = APIRouter(prefix="/api/jobs", tags=["jobs"])

LIST = "jobs"

Seconds = Annotated[float, Field(ge=0, le=LONGEST_US / 1_000_000, allow_inf_nan=False)]


class Job(BaseModel):
    """A job, as in lists."""

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
    """A page of jobs, and the cursor of the next page."""

    jobs: list[Job]
    next: str | None


class Progress(BaseModel):
    """The progress that a handler reported last."""

    fraction: float
    text: str
    at: str


class Checkpoint(BaseModel):
    """A completed step of a handler."""

    name: str
    at: str
    size: int
    epoch: int


class Artifact(BaseModel):
    """A file that a job stores with its result."""

    name: str
    size: int
    hash: str
    media_type: str
    created_at: str


class WholeJob(Job):
    """A job with all of its details."""

    payload: Any
    result: Any
    waits_for: str | None
    progress: Progress | None
    steps: list[Checkpoint]
    artifacts: list[Artifact]
    redriven_as: list[str]
    events: list[Moved]


class NewJob(Asked):
    """A job to enqueue."""

    model_config = example(kind="fetch", payload={"url": "…"}, key="order-17", run_in="5m")

    kind: str = Field(min_length=1, max_length=LONGEST_NAME, description="Kind of job: the name of a declared job.")
    payload: dict[str, Any] = Field(default_factory=dict, description="Arguments.")
    queue: str = Field(default="default", min_length=1, max_length=LONGEST_NAME)
    priority: int = Field(default=0, ge=-LARGEST_INT, le=LARGEST_INT, description="Priority. Higher runs first.")
    key: str | None = Field(
        default=None, min_length=1, max_length=LONGEST_KEY, description="Unique key: one job per key, without expiry."
    )
    run_in: str | Seconds = Field(
        default="0s", description="Delay before the job can run: seconds, or a duration such as 5m."
    )
    max_attempts: int = Field(default=4, ge=1, le=LARGEST_INT)
    correlation_id: str | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)


class Enqueued(BaseModel):
    """The job. `created` is false if the key was used before: the job is then the existing one."""

    job: Job
    created: bool


class Cancel(Asked):
    """A request to cancel a job."""

    model_config = example(reason="no longer wanted")

    hard: bool = Field(default=False, description="Cancel a running job now, without waiting for its handler.")
    reason: Text | None = Field(default=None, max_length=1_000, description="Reason, recorded in the event log.")


class Cancelled(BaseModel):
    """The outcome of a cancel request."""

    outcome: str
    job: Job


class Retry(Asked):
    """A request to rerun a job."""

    model_config = example(payload={"url": "…"}, again=False)

    payload: dict[str, Any] | None = Field(default=None, description="New arguments. Default: those of the old job.")
    again: bool = Field(default=False, description="Rerun even if the job was already rerun.")


class Again(BaseModel):
    """The old job, and the new job that reruns it."""

    old: str
    new: str


States = Annotated[list[str] | None, Query(max_length=20, description="Only these states. Repeatable.")]


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
    """List jobs, newest first, without payloads and results. Select by the time of creation (`since`, `until`) or of
    the end (`ended_since`, `ended_before`)."""
    times = {"made_since": since, "made_before": until, "ended_since": ended_since, "ended_before": ended_before}
    states, now = jobs.states_named(state or []), await store.now() if any(times.values()) else 0
    moments: dict[str, Any] = {name: moment_us(said, now) for name, said in times.items() if said}
    wanted = JobFilter(caller.tenant_id, states, queue, kind, correlation_id, **moments)
    order, place = not oldest_first, opened(LIST, after)
    page = await jobs.page(store, wanted, after=place, limit=limit, newest_first=order, text=text)
    return answer({"jobs": [job(row) for row in page.jobs], "next": sealed(LIST, page.next)})


@router.post("", status_code=201, response_model=Enqueued, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def enqueue(asked: NewJob, caller: Adds, does: Does, trace: Trace) -> Response:
    """Enqueue a job."""

    async def work(store: Store) -> dict[str, Any]:
        before = 0 if asked.key is None else await store.now()  # a job without a key is always new
        key = await jobs.enqueue(
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
        row = await jobs.find(store, caller.tenant_id, public_id(JOB.name, key))
        return {"job": job(row), "created": row["created_at"] >= before}

    return await does(asked, work, status=201)


@router.get("/{id}", response_model=WholeJob, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show one job: its payload, result, steps, and history."""
    return answer(whole(await jobs.show(store, caller.tenant_id, id)))


@router.post(
    "/{id}/cancel",
    response_model=Cancelled,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def cancel(id: str, caller: Writes, does: Does, asked: Annotated[Cancel | None, Body()] = None) -> Response:
    """Cancel a job. A running job receives a cancellation request; with `hard`, it is cancelled now."""
    how = asked or Cancel()

    async def work(store: Store) -> dict[str, Any]:
        done = await jobs.cancel(store, caller.tenant_id, id, hard=how.hard, reason=how.reason, actor=caller.actor)
        return {"outcome": done.replace(" ", "_"), "job": job(await jobs.find(store, caller.tenant_id, id))}

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
    """Rerun a failed, cancelled, or dead-lettered job as a new job."""
    how = asked or Retry()
    payload = None if how.payload is None else json.dumps(how.payload)

    async def work(store: Store) -> dict[str, Any]:
        new = await jobs.retry(store, caller.tenant_id, id, payload=payload, again=how.again, actor=caller.actor)
        return {"old": public_id(JOB.name, jobs.key_of(id)), "new": public_id(JOB.name, new)}

    return await does(how, work, status=201)


def job(row: jobs.Row) -> dict[str, Any]:
    """Return a job as lists show it."""
    return only(Job, jobs.as_json(row))


def whole(story: jobs.Story) -> dict[str, Any]:
    """Return a job with all of its details."""
    told = jobs.as_json(story.job)
    return {
        **only(Job, told),
        "payload": told["payload"],
        "result": told["result"],
        "waits_for": jobs.waits_for(story.job),
        "progress": queries.said_as_json(story.progress),
        "steps": [only(Checkpoint, queries.step_json(one)) for one in story.steps],
        "artifacts": [only(Artifact, results_artifacts.as_json(kept)) for kept in story.artifacts],
        "redriven_as": [public_id(JOB.name, key) for key in story.redriven_as],
        "events": [shown(event) for event in story.events],
    }


# Routes of artifacts, the files that jobs store with their results.


artifacts_router = APIRouter(prefix="/api/jobs/{id}/artifacts", tags=["jobs"])

ANYTHING = "*/*"
"""The media type that the handler declared."""

ArtifactName = Annotated[str, Path(min_length=1, max_length=results_artifacts.LONGEST_NAME)]


@artifacts_router.get(
    "/{name}",
    response_class=Response,
    responses={200: {"content": {ANYTHING: {}}}, **fails(errors.NotFound)},
)
async def artifact(id: str, name: ArtifactName, caller: Reads, store: Db) -> Response:
    """Return the content of an artifact, byte for byte. Browsers save it and do not show it."""
    found, kept = await results_artifacts.content(store, caller.tenant_id, id, name)
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
    return Response(kept, 200, {**headers, "Content-Type": found.media_type, "ETag": f'"{found.hash}"'})


# The route that sends signals to waiting jobs.


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
        sent = await commands_signals.send(
            store, caller.tenant_id, asked.name, asked.payload, job=asked.job, key=asked.key
        )
        return {"name": asked.name, "sent": sent.new, "woken": sent.woken}

    return await does(asked, work, status=201)
