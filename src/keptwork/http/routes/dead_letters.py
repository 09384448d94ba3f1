"""Routes of dead letters: list, show, and redrive them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.durations import moment_us
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LONGEST_KEY, LONGEST_NAME
from keptwork.http import problems
from keptwork.http.auth import Adds, AddsMany, Reads, Writes
from keptwork.http.dependencies import After, Db, Most, Name, Search, Text, answer, fails, opened, sealed
from keptwork.http.idempotency import Asked, Does, example
from keptwork.http.routes.events import Moment
from keptwork.http.routes.jobs import Again, Retry
from keptwork.jobs import commands_bulk, dead_letters
from keptwork.jobs import queries as jobs
from keptwork.jobs.commands_bulk import MOST_AT_ONCE
from keptwork.jobs.queries import document
from keptwork.store import JobFilter, Store

router = APIRouter(prefix="/api/dead-letters", tags=["dead letters"])

LIST = "dead-letters"


class DeadLetter(BaseModel):
    """A dead letter: why and how its job ended."""

    id: str
    kind: str
    queue: str
    dead_lettered_at: str
    reason_code: str | None
    stage: str | None
    last_error: str | None
    attempts: int
    max_attempts: int
    last_owner: str | None
    last_lease_expires_at: str | None
    correlation_id: str | None
    redriven_from: str | None
    redriven_as: list[str]


class DeadLetters(BaseModel):
    """A page of dead letters, and the cursor of the next page."""

    dead_letters: list[DeadLetter]
    next: str | None


class WholeDeadLetter(DeadLetter):
    """A dead letter, and the payload of its job."""

    payload: Any


class Redrive(Asked):
    """The dead letters to redrive. A field that is null does not filter."""

    model_config = example(queue="mail", reason_code="exhausted_retries", since="1h", dry_run=True)

    queue: Text | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    kind: Text | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    reason_code: Text | None = Field(default=None, max_length=100)
    since: Text | None = Field(
        default=None,
        max_length=100,
        description="Dead-lettered since this time: a time, or a duration before now (10m).",
    )
    again: bool = Field(default=False, description="Include dead letters that were already rerun.")
    limit: int = Field(default=MOST_AT_ONCE, ge=1, le=MOST_AT_ONCE, description="Maximum number of jobs, oldest first.")
    dry_run: bool = Field(default=False, description="Only count the jobs; change nothing.")


class Redriven(BaseModel):
    """The number of dead letters, and the jobs that rerun them."""

    count: int
    redriven: list[Again]
    dry_run: bool


@router.get("", response_model=DeadLetters, responses=fails(errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    queue: Name = None,
    kind: Name = None,
    reason_code: Name = None,
    since: Moment = None,
    until: Moment = None,
    text: Search = None,
    after: After = None,
    limit: Most = 50,
) -> Response:
    """List dead letters, newest first."""
    wanted = await _among(store, caller.tenant_id, queue, kind, reason_code, since, until)
    page = await dead_letters.page(store, wanted, after=opened(LIST, after), limit=limit, text=text)
    later = await dead_letters.later_jobs(store, caller.tenant_id, page.jobs)
    shown = [dead_letters.as_json(row, later[row["id"]]) for row in page.jobs]
    return answer({"dead_letters": shown, "next": sealed(LIST, page.next)})


@router.get("/{id}", response_model=WholeDeadLetter, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show why one job was dead-lettered."""
    row = await dead_letters.find(store, caller.tenant_id, id)
    later = await dead_letters.later_jobs(store, caller.tenant_id, [row])
    return answer({**dead_letters.as_json(row, later[row["id"]]), "payload": document(row["payload"])})


@router.post(
    "/{id}/redrive",
    status_code=201,
    response_model=Again,
    responses=fails(errors.NotFound, errors.RunAgainBefore, errors.KeyReused, errors.RequestInFlight),
)
async def redrive_one(id: str, caller: Adds, does: Does, asked: Annotated[Retry | None, Body()] = None) -> Response:
    """Redrive one dead letter as a new job, optionally with another payload."""
    how = asked or Retry()
    payload = None if how.payload is None else json.dumps(how.payload)

    async def work(store: Store) -> dict[str, str]:
        return _pair(
            await dead_letters.redrive_one(
                store, caller.tenant_id, id, payload=payload, again=how.again, actor=caller.actor
            )
        )

    return await does(how, work, status=201)


@router.post("/redrive", response_model=Redriven, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def redrive(asked: Redrive, caller: AddsMany, does: Does) -> Response:
    """Redrive many dead letters, by queue, kind, reason, and time."""

    async def work(store: Store) -> dict[str, Any]:
        wanted = await _among(store, caller.tenant_id, asked.queue, asked.kind, asked.reason_code, asked.since)
        if asked.dry_run:
            count = await dead_letters.count(store, wanted, again=asked.again, limit=asked.limit)
            return {"count": count, "redriven": [], "dry_run": True}
        done = dead_letters.redrive(store, wanted, again=asked.again, limit=asked.limit, actor=caller.actor)
        pairs = [_pair(one) async for one in done]
        return {"count": len(pairs), "redriven": pairs, "dry_run": False}

    return await does(asked, work)


def _pair(done: dead_letters.Redriven) -> dict[str, str]:
    return {"old": public_id(JOB.name, done.old), "new": public_id(JOB.name, done.new)}


async def _among(
    store: Store,
    tenant_id: int,
    queue: str | None,
    kind: str | None,
    reason_code: str | None,
    since: str | None,
    until: str | None = None,
) -> JobFilter:
    now = await store.now() if since or until else 0
    start, end = (moment_us(said, now) if said else None for said in (since, until))
    return dead_letters.among(tenant_id, queue=queue, kind=kind, reason_code=reason_code, since=start, until=end)


# Routes that cancel or rerun many jobs, by IDs or by a filter, or only count them.


bulk_router = APIRouter(prefix="/api/jobs", tags=["jobs"])


class Filter(BaseModel):
    """A filter of jobs. A field that is null does not filter."""

    model_config = ConfigDict(extra="forbid", strict=True)

    state: list[str] | None = Field(default=None, max_length=len(JOB.states))
    queue: Text | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    kind: Text | None = Field(default=None, min_length=1, max_length=LONGEST_NAME)
    correlation_id: Text | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)


class Many(Asked):
    """A selection of jobs, by IDs or by a filter."""

    ids: list[str] | None = Field(default=None, min_length=1, max_length=commands_bulk.MOST_AT_ONCE)
    filter: Filter | None = None
    limit: int = Field(
        default=commands_bulk.MOST_AT_ONCE,
        ge=1,
        le=commands_bulk.MOST_AT_ONCE,
        description="Maximum number of jobs, oldest first.",
    )
    dry_run: bool = Field(default=False, description="Only count the jobs; change nothing.")


class CancelMany(Many):
    """The jobs to cancel, and how."""

    model_config = example(filter={"queue": "mail", "state": ["queued"]}, reason="no longer wanted", dry_run=True)

    hard: bool = False
    reason: Text | None = Field(default=None, max_length=1_000)


class RetryMany(Many):
    """The jobs to rerun."""

    model_config = example(filter={"kind": "fetch", "state": ["failed"]}, limit=100)

    again: bool = False


class Bulk(BaseModel):
    """The number of selected jobs, the outcome of each, and the rejections with reasons. `more`: the filter matches
    further jobs."""

    count: int
    done: dict[str, str]
    refused: dict[str, dict[str, Any]]
    more: bool
    dry_run: bool


@bulk_router.post("/cancel", response_model=Bulk, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def cancel_many(asked: CancelMany, caller: Writes, does: Does) -> Response:
    """Cancel many jobs, by IDs or by a filter."""

    async def work(store: Store) -> dict[str, Any]:
        which = await _chosen(store, caller.tenant_id, asked)
        if asked.dry_run:
            return _counted(which)
        return _many(
            await commands_bulk.cancel_many(store, which, hard=asked.hard, reason=asked.reason, actor=caller.actor),
            len(which.ids),
        )

    return await does(asked, work)


@bulk_router.post("/retry", response_model=Bulk, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def retry_many(asked: RetryMany, caller: AddsMany, does: Does) -> Response:
    """Rerun many jobs as new jobs, by IDs or by a filter."""

    async def work(store: Store) -> dict[str, Any]:
        which = await _chosen(store, caller.tenant_id, asked)
        if asked.dry_run:
            return _counted(which)
        return _many(
            await commands_bulk.retry_many(store, which, again=asked.again, actor=caller.actor), len(which.ids)
        )

    return await does(asked, work)


async def _chosen(store: Store, tenant_id: int, asked: Many) -> commands_bulk.Chosen:
    wanted = None
    if asked.filter is not None:
        by = asked.filter
        wanted = JobFilter(tenant_id, jobs.states_named(by.state or []), by.queue, by.kind, by.correlation_id)
    return await commands_bulk.chosen(store, tenant_id, asked.ids, wanted, asked.limit)


def _counted(which: commands_bulk.Chosen) -> dict[str, Any]:
    return {"count": len(which.ids), "done": {}, "refused": {}, "more": which.more, "dry_run": True}


def _many(what: commands_bulk.Bulk, count: int) -> dict[str, Any]:
    refused = {id: problems.document(error) for id, error in what.refused.items()}
    return {"count": count, "done": what.done, "refused": refused, "more": what.more, "dry_run": False}
