"""Routes for liveness, readiness, and metrics."""

from __future__ import annotations

import asyncio
from html import escape
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core import render
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, WholeDb, answer, fails, refusals
from keptwork.http.routes.queues import Queue
from keptwork.http.routes.supervision import Refused, Repeated, Stay, Transition
from keptwork.observability import prometheus, stats
from keptwork.observability import stats as service

router = APIRouter(tags=["health"])

READY_SECONDS = 5.0


class Health(BaseModel):
    """The health of the server."""

    status: Literal["ok", "ready"]


@router.get("/healthz", response_model=Health)
async def healthz() -> Response:
    """Check that the process responds. Does not query the database."""
    return answer({"status": "ok"})


@router.get("/readyz", response_model=Health, responses=refusals(errors.StoreError, errors.ShuttingDown))
async def readyz(request: Request, store: WholeDb) -> Response:
    """Check that the server can serve requests: it is not shutting down, and the database responds, has the schema with
    which this server opened it, and shows its rows to the server's login."""
    if request.app.state.stopping.is_set():
        raise errors.ShuttingDown
    try:
        async with asyncio.timeout(READY_SECONDS):
            await store.insist_on_sight()
            await store.tenants()
    except TimeoutError:
        raise errors.StoreError(url=store.url, detail=f"it did not answer within {READY_SECONDS:g} s") from None
    return answer({"status": "ready"})


@router.get("/metrics", responses={200: {"content": {"text/plain": {}}}, **fails()}, response_class=Response)
async def metrics(caller: Reads, whole: WholeDb, store: Db) -> Response:
    """Show the metrics of the caller's tenant and of the engine in the Prometheus text format."""
    figures = await stats.current(store, caller.tenant_id, whole)
    return Response(prometheus.text(figures).encode(), media_type=prometheus.CONTENT_TYPE)


# The route of all metrics of a tenant, as JSON. `/metrics` has the same for Prometheus.


stats_router = APIRouter(prefix="/api/stats", tags=["stats"])


class Times(BaseModel):
    """The number of measurements, and their duration in seconds."""

    count: int
    mean: float | None
    p50: float | None
    p95: float | None


class Kind(BaseModel, extra="allow"):
    """A kind of job: its moves by trigger, its finished jobs, and their durations."""

    kind: str
    ended: int
    success_rate: float | None
    run_seconds: Times
    wait_seconds: Times


class GivenUp(BaseModel):
    """The number of dead letters of a kind of job, for one reason."""

    kind: str
    reason: str
    count: int


class Conflict(BaseModel):
    """The number of moves that were too late."""

    entity: str
    trigger: str
    count: int


class Stats(BaseModel):
    """The metrics of a tenant, and of the engine that serves all tenants."""

    tenant: str
    at: str
    queues: list[Queue]
    workers: dict[str, int]
    breakers: list[dict[str, Any]]
    last_minute: dict[str, int]
    kinds: list[Kind]
    dead_letters: list[GivenUp]
    transitions: list[Transition]
    time_in_state: list[Stay]
    refused_transitions: list[Refused]
    idempotency: Repeated
    claim_calls: dict[str, int]
    claim_conflicts: list[Conflict]
    lease_renewals: dict[str, int]
    database_retries: int
    wakeups: int


@stats_router.get("", response_model=Stats, responses=fails(), name="stats")
async def show_stats(caller: Reads, store: Db, whole: WholeDb) -> Response:
    """Show metrics since the database was created, and the current queues."""
    return answer(service.as_json(await service.current(store, caller.tenant_id, whole)))


# A page that lists every route, made from the OpenAPI document. It has no scripts and no external content.


docs_router = APIRouter()


@docs_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """Return the list as HTML."""
    return Response(page(request.app.openapi()).encode(), media_type="text/html; charset=utf-8")


def page(document: dict[str, Any]) -> str:
    """Return the OpenAPI document as an HTML page."""
    routes = "".join(
        f"<dt><code>{method.upper()} {escape(path)}</code></dt><dd>{escape(said.get('description', ''))}</dd>"
        for path, methods in document["paths"].items()
        for method, said in methods.items()
    )
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(document['info']['title'])}</title>"
    about = f"<h1>{escape(document['info']['title'])}</h1><p>{escape(document['info']['description'])}</p>"
    whole = "<p>The whole description, for programs: <a href='/openapi.json'>/openapi.json</a></p>"
    return f"{head}{about}{whole}<dl>{routes}</dl></html>"


# Routes that show the declared lifecycles.


lifecycles_router = APIRouter(prefix="/api/lifecycles", tags=["lifecycles"])


class State(BaseModel):
    """A state, and whether it is final."""

    name: str
    final: bool


class Move(BaseModel):
    """A move: its trigger, its states, and the event that it writes."""

    trigger: str
    verb: str
    source: str | None = Field(alias="from")
    to: str
    event: str
    guard: str | None


class Lifecycle(BaseModel):
    """A declared lifecycle."""

    name: str
    states: list[State]
    moves: list[Move]


class Lifecycles(BaseModel):
    """All lifecycles."""

    lifecycles: list[Lifecycle]


@lifecycles_router.get("", response_model=Lifecycles, responses=fails())
async def listing(caller: Reads) -> Response:
    """List the lifecycles."""
    return answer({"lifecycles": [render.as_json(one) for one in LIFECYCLES.values()]})


@lifecycles_router.get("/{name}", response_model=Lifecycle, responses=fails(errors.NotFound))
async def show(name: str, caller: Reads) -> Response:
    """Show one lifecycle: its states and moves."""
    if name not in LIFECYCLES:
        raise errors.NotFound(what="lifecycle", id=repr(name), listing="keptwork lifecycles list")
    return answer(render.as_json(LIFECYCLES[name]))
