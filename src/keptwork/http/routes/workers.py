"""Workers in any language, without a database: they enrol, ask for jobs, and say that they live.

What they report of single jobs is in `remote_jobs`.
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
from keptwork.bounds import LONGEST_KEY
from keptwork.http.auth import Supervises, lasting
from keptwork.http.idempotency import Asked, Does, KeyGiven, example
from keptwork.http.pages import Db, Text, answer, fails
from keptwork.http.routes.given_jobs import GivenJob, Lease, given, us
from keptwork.http.routes.remote_jobs import Epoch, JobId, Outcome, Settled, outcome_said
from keptwork.http.routes.worker_models import Ending, NewWorker, Served, Worker, add_reads, worker
from keptwork.lifecycle import WORKER
from keptwork.moments import rfc3339
from keptwork.service import enrolment
from keptwork.service import workers as service
from keptwork.service.orders import Order
from keptwork.store import Store
from keptwork.worker import remote_claims, remote_reports
from keptwork.worker.settlement import plain

router = APIRouter(prefix="/api/workers", tags=["workers"])
add_reads(router, "", "workers")

LONGEST_WAIT = 30.0


class Enrolment(NewWorker):
    """A worker: what it is called, which queues and kinds of jobs it takes, and how many at a time."""

    model_config = example(workspace_id="ws_test", name="gpu-1", queues=["render"], kinds=["still"], concurrency=4)

    queues: list[Served] = Field(default=["default"], max_length=service.MOST_SERVED)
    kinds: list[Served] = Field(
        default=[], max_length=service.MOST_SERVED, description="Without any, it takes every kind."
    )


class Claim(Asked):
    """What a worker asks for. What is left out is as it was said when the worker was made."""

    model_config = example(max=4, wait=20, lease=60)

    max: int = Field(default=1, ge=1, le=remote_claims.MOST_JOBS, description="At most so many jobs.")
    queues: list[Served] | None = Field(default=None, min_length=1, max_length=service.MOST_SERVED)
    kinds: list[Served] | None = Field(default=None, max_length=service.MOST_SERVED)
    wait: float = Field(default=0, ge=0, le=LONGEST_WAIT, description="So many seconds, if nothing is due now.")
    lease: Lease = 60
    start: bool = Field(default=True, description="The jobs run at once; else each is started by a call of its own.")
    again: bool | None = Field(
        default=None,
        description="With true, only what a claim under this key was given before; with false, something new; if left "
        "out, one or the other.",
    )


class Claimed(BaseModel):
    """The jobs that were given, how the worker stands, how it is to end if it is, and the database's time."""

    jobs: list[GivenJob]
    state: str
    paused: bool
    end: Ending | None
    now: str


class Held(BaseModel):
    """A job, and the epoch it was given under."""

    job: JobId
    epoch: Epoch


class Heartbeat(Asked):
    """The jobs whose leases are to run on, and what the worker does, for people to see."""

    model_config = example(jobs=[{"job": "job_0199c82c-c000-7000-807a-a2a0b8276ff8", "epoch": 0}], lease=60)

    jobs: list[Held] = Field(default=[], max_length=10_000)
    lease: Lease | None = Field(default=60, description="How long they run from now on; null only looks.")
    doing: dict[str, Any] | None = Field(default=None, description="Whatever is worth knowing of it now.")


class Stands(BaseModel):
    """Whether a job is still this worker's, and whether it is to end: `soft`, by itself, or `hard`: it was taken."""

    job: str
    epoch: int
    held: bool
    cancel: str | None


class Beaten(BaseModel):
    """How the worker and its jobs stand. While it is paused it is given nothing; `end` says how it is to end."""

    state: str
    paused: bool
    end: Ending | None
    now: str
    jobs: list[Stands]


class Reported(Outcome):
    """What came of one job."""

    job: JobId
    epoch: Epoch


class Settle(Asked):
    """What came of several jobs."""

    model_config = example(
        jobs=[{"job": "job_0199c82c-c000-7000-807a-a2a0b8276ff8", "epoch": 0, "outcome": "succeed", "result": 4}]
    )

    jobs: list[Reported] = Field(min_length=1, max_length=remote_claims.MOST_JOBS)


class Settlement(BaseModel):
    """What became of each, in the same order; null is one that is no longer this worker's: nothing changed."""

    jobs: list[Settled | None]


class End(Asked):
    """Why a worker ends: it has drained, or there is an error it cannot recover from."""

    model_config = example(reason="drained")

    reason: Text | None = Field(default=None, max_length=LONGEST_KEY)
    error: Text | None = Field(default=None, max_length=LONGEST_KEY)


KNOWN = fails(errors.NotFound, errors.KeyReused, errors.RequestInFlight)


@router.post("", status_code=201, response_model=Worker, responses=fails(errors.KeyReused, errors.RequestInFlight))
async def create(asked: Enrolment, caller: Supervises, does: Does) -> Response:
    """Makes a worker, IDLE. It has no heartbeat to miss until its first call."""
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
    """The worker is at work: from IDLE to RUNNING, as its first claim does; one that is RUNNING stays so."""

    async def work(store: Store) -> dict[str, Any]:
        return worker(await enrolment.start(store, caller.tenant_id, id, caller.actor))

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
    """Gives the worker jobs that are due: at once, or as soon as there are some within `wait` seconds. A claim whose
    answer was lost, sent again under its key, is given the same jobs as long as it holds them; what was claimed for a
    caller that has hung up meanwhile goes back into the queue."""
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
    """Says that the worker lives, and renews the leases of the jobs it names. It is told which of them are still its
    own, which are to end, and what is wanted of itself."""
    how = asked or Heartbeat()
    tokens = [(one.job, one.epoch) for one in how.jobs]
    lease_us = None if how.lease is None else us(how.lease)

    async def work(store: Store) -> dict[str, Any]:
        told = await remote_reports.heartbeat(store, caller.tenant_id, id, tokens, lease_us, how.doing)
        return {**_wanted(told.state, told.order, await store.now()), "jobs": [one._asdict() for one in told.jobs]}

    return await does(how, work)


@router.post("/{id}/settle", response_model=Settlement, responses=KNOWN)
async def settle(id: str, caller: Supervises, does: Does, asked: Settle) -> Response:
    """What came of several jobs, written together. Each is one that was given under that epoch, or changes nothing."""

    async def work(store: Store) -> dict[str, Any]:
        reports = [(one.job, one.epoch, outcome_said(one)) for one in asked.jobs]
        told = await remote_reports.settle_all(store, caller.tenant_id, id, reports)
        return {"jobs": [one and one._asdict() for one in told]}

    return await does(asked, work)


@router.post("/{id}/end", response_model=Worker, responses=KNOWN)
async def end(id: str, caller: Supervises, does: Does, asked: Annotated[End | None, Body()] = None) -> Response:
    """The worker has drained and ends, or fails. What it still holds comes back when its leases end."""
    how = asked or End()

    async def work(store: Store) -> dict[str, Any]:
        reason, error = (text and plain(text) for text in (how.reason, how.error))
        return worker(await enrolment.end(store, caller.tenant_id, id, reason, error))

    return await does(how, work)


@asynccontextmanager
async def _watched(request: Request) -> AsyncIterator[asyncio.Event]:
    """An event that is set when the client hangs up."""
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
    paused = not enrolment.may_claim(state) and not WORKER.state(state).final
    return {"state": state, "paused": paused, "end": None if order is None else order._asdict(), "now": rfc3339(now)}
