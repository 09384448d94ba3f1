"""Routes for workers in any language, without a database: they register, claim jobs, and send heartbeats.

Reports about single jobs are in `remote_jobs`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import WORKER
from keptwork.core.validation import LONGEST_KEY
from keptwork.http.auth import Supervises, lasting
from keptwork.http.dependencies import Db, Text, answer, fails
from keptwork.http.idempotency import Asked, Does, KeyGiven, example
from keptwork.http.routes.claimed_jobs import GivenJob, Lease, given, us
from keptwork.http.routes.remote_jobs import Epoch, JobId, Outcome, Settled, outcome_said
from keptwork.http.routes.supervision import Ending, NewWorker, Served, Worker, add_reads, worker
from keptwork.jobs.outcome import plain
from keptwork.store import Store
from keptwork.workers import commands as commands_enrolment
from keptwork.workers import commands as service
from keptwork.workers.registration import Order
from keptwork.workers.remote import claims as remote_claims
from keptwork.workers.remote import reports as remote_reports

router = APIRouter(prefix="/api/workers", tags=["workers"])
add_reads(router, "", "workers")

LONGEST_WAIT = 30.0


class Enrolment(NewWorker):
    """A worker to register: its name, its queues and kinds of jobs, and its concurrency."""

    model_config = example(workspace_id="ws_test", name="gpu-1", queues=["render"], kinds=["still"], concurrency=4)

    queues: list[Served] = Field(default=["default"], max_length=service.MOST_SERVED)
    kinds: list[Served] = Field(
        default=[], max_length=service.MOST_SERVED, description="Kinds of jobs to claim. Empty: all kinds."
    )


class Claim(Asked):
    """A claim of jobs. Omitted fields have the values from the registration of the worker."""

    model_config = example(max=4, wait=20, lease=60)

    max: int = Field(default=1, ge=1, le=remote_claims.MOST_JOBS, description="Maximum number of jobs.")
    queues: list[Served] | None = Field(default=None, min_length=1, max_length=service.MOST_SERVED)
    kinds: list[Served] | None = Field(default=None, max_length=service.MOST_SERVED)
    wait: float = Field(default=0, ge=0, le=LONGEST_WAIT, description="Seconds to wait if no job is due.")
    lease: Lease = 60
    start: bool = Field(
        default=True, description="Start the jobs immediately. Otherwise, each job is started by a separate call."
    )
    again: bool | None = Field(
        default=None,
        description=(
            "true: only jobs that an earlier claim with this key received. false: only new jobs. Omitted: either."
        ),
    )


class Claimed(BaseModel):
    """The claimed jobs, the state of the worker, a requested end, and the time of the database."""

    jobs: list[GivenJob]
    state: str
    paused: bool
    end: Ending | None
    now: str


class Held(BaseModel):
    """A job, and the epoch of its claim."""

    job: JobId
    epoch: Epoch


class Heartbeat(Asked):
    """The jobs whose leases to renew, and what the worker is doing, for users to see."""

    model_config = example(jobs=[{"job": "job_0199c82c-c000-7000-807a-a2a0b8276ff8", "epoch": 0}], lease=60)

    jobs: list[Held] = Field(default=[], max_length=10_000)
    lease: Lease | None = Field(default=60, description="Duration of the renewed leases in seconds; null renews none.")
    doing: dict[str, Any] | None = Field(default=None, description="Additional data about what the worker is doing.")


class Stands(BaseModel):
    """The status of a job: whether the worker still holds it, and whether it is to stop: `soft` (a cancellation
    request) or `hard` (the worker has lost it)."""

    job: str
    epoch: int
    held: bool
    cancel: str | None


class Beaten(BaseModel):
    """The states of the worker and its jobs. A paused worker receives no jobs. `end` describes a requested end."""

    state: str
    paused: bool
    end: Ending | None
    now: str
    jobs: list[Stands]


class Reported(Outcome):
    """The outcome of one job."""

    job: JobId
    epoch: Epoch


class Settle(Asked):
    """The outcomes of several jobs."""

    model_config = example(
        jobs=[{"job": "job_0199c82c-c000-7000-807a-a2a0b8276ff8", "epoch": 0, "outcome": "succeed", "result": 4}]
    )

    jobs: list[Reported] = Field(min_length=1, max_length=remote_claims.MOST_JOBS)


class Settlement(BaseModel):
    """The outcome of each report, in the same order. null means that the worker no longer holds the job, and that
    nothing changed."""

    jobs: list[Settled | None]


class End(Asked):
    """The reason for which a worker ends: it was drained, or it has an unrecoverable error."""

    model_config = example(reason="drained")

    reason: Text | None = Field(default=None, max_length=LONGEST_KEY)
    error: Text | None = Field(default=None, max_length=LONGEST_KEY)


KNOWN = fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight)


@router.post("", status_code=201, response_model=Worker, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def create(asked: Enrolment, caller: Supervises, does: Does) -> Response:
    """Register an IDLE worker. It has no heartbeat to miss until its first call."""
    remote_claims.check_kinds(asked.kinds)
    new = service.NewWorker(**asked.model_dump(exclude={"request_id"}))

    async def work(store: Store) -> dict[str, Any]:
        return worker(await service.create(store, caller.tenant_id, new, service.Wish(caller.actor)))

    return await does(asked, work, status=201)


@router.post(
    "/{id}/start",
    response_model=Worker,
    responses=fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight),
)
async def start(id: str, caller: Supervises, does: Does, asked: Annotated[Asked | None, Body()] = None) -> Response:
    """Start a worker: from IDLE to RUNNING, like its first claim. A RUNNING worker stays RUNNING."""

    async def work(store: Store) -> dict[str, Any]:
        return worker(await commands_enrolment.enrol(store, caller.tenant_id, id, caller.actor))

    return await does(asked or Asked(), work)


@router.post("/{id}/claim", response_model=Claimed, responses=fails(errors.NotFound), dependencies=[Depends(lasting)])
async def claim(
    id: str,
    caller: Supervises,
    store: Db,
    request: Request,
    given_key: KeyGiven,
    asked: Annotated[Claim | None, Body()] = None,
) -> Response:
    """Claim due jobs for a worker, or wait up to `wait` seconds for some. If the response of a claim was lost, a
    repeated claim with its key returns the same jobs while the worker holds them. If the caller disconnects during a
    claim, its jobs return to the queue."""
    how = asked or Claim()
    row = await service.find(store, caller.tenant_id, id)
    said = service.serves(row)
    kinds = said["kinds"] if how.kinds is None else how.kinds
    remote_claims.check_kinds(kinds)
    key = given_key or how.request_id
    ask = remote_claims.Ask(
        row["id"],
        caller.tenant_id,
        how.queues or said["queues"] or ["default"],
        kinds,
        how.max,
        us(how.lease),
        how.start,
        secrets.randbits(62) if key is None else remote_claims.number_of(key),
        how.again if key is not None else False,
    )
    claims: remote_claims.Claims = request.app.state.claims
    async with _watched(request) as left:
        found = await claims.claim(ask, how.wait, left)
    told = _wanted(found.state, found.order, await store.now())
    return answer({"jobs": [given(one) for one in found.jobs], **told})


@router.post("/{id}/heartbeat", response_model=Beaten, responses=KNOWN)
async def heartbeat(
    id: str, caller: Supervises, does: Does, asked: Annotated[Heartbeat | None, Body()] = None
) -> Response:
    """Send a heartbeat, and renew the leases of the named jobs. The response lists which jobs the worker still holds,
    which are to stop, and whether the worker is to pause or end."""
    how = asked or Heartbeat()
    tokens = [(one.job, one.epoch) for one in how.jobs]
    lease_us = None if how.lease is None else us(how.lease)

    async def work(store: Store) -> dict[str, Any]:
        told = await remote_reports.heartbeat(store, caller.tenant_id, id, tokens, lease_us, how.doing)
        return {**_wanted(told.state, told.order, await store.now()), "jobs": [one._asdict() for one in told.jobs]}

    return await does(how, work)


@router.post("/{id}/settle", response_model=Settlement, responses=KNOWN)
async def settle(id: str, caller: Supervises, does: Does, asked: Settle) -> Response:
    """Report the outcomes of several jobs in one transaction. A report that does not match the current claim changes
    nothing."""

    async def work(store: Store) -> dict[str, Any]:
        reports = [(one.job, one.epoch, outcome_said(one)) for one in asked.jobs]
        told = await remote_reports.settle_all(store, caller.tenant_id, id, reports)
        return {"jobs": [one and one._asdict() for one in told]}

    return await does(asked, work)


@router.post("/{id}/end", response_model=Worker, responses=KNOWN)
async def end(id: str, caller: Supervises, does: Does, asked: Annotated[End | None, Body()] = None) -> Response:
    """End a worker that has drained or failed. Jobs that it holds return to the queue when their leases expire."""
    how = asked or End()

    async def work(store: Store) -> dict[str, Any]:
        reason, error = (text and plain(text) for text in (how.reason, how.error))
        return worker(await commands_enrolment.end(store, caller.tenant_id, id, reason, error))

    return await does(how, work)


@asynccontextmanager
async def _watched(request: Request) -> AsyncIterator[asyncio.Event]:
    """Provide an event that is set when the client disconnects."""
    left = asyncio.Event()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue
        left.set()

    watching = asyncio.create_task(watch())
    try:
        yield left
    finally:
        watching.cancel()


def _wanted(state: str, order: Order | None, now: int) -> dict[str, Any]:
    paused = not commands_enrolment.may_claim(state) and not WORKER.state(state).final
    return {"state": state, "paused": paused, "end": None if order is None else order._asdict(), "now": rfc3339(now)}
