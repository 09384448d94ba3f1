"""The route of all metrics of a tenant, as JSON. `/metrics` has the same for Prometheus."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from keptwork.http.auth import Reads
from keptwork.http.dependencies import Db, WholeDb, answer, fails
from keptwork.http.routes.queues import Queue
from keptwork.http.routes.supervision import Refused, Repeated, Stay, Transition
from keptwork.observability import stats as service

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
