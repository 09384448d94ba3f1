"""Routes of supervision: create, show, and control workers, and show their metrics.

Calls that a worker makes itself are in `workers`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_KEY
from keptwork.http.auth import Principal, Reads, Supervises
from keptwork.http.dependencies import Db, Text, WholeDb, answer, fails, only
from keptwork.http.idempotency import Asked, Does, Once, example
from keptwork.http.routes.supervision_models import NewWorker, Worker, add_reads, worker
from keptwork.observability import stats, stats_supervision
from keptwork.store import Store
from keptwork.workers import commands as service

router = APIRouter(prefix="/api/supervisor", tags=["supervisor"])
add_reads(router, "/workers", "supervisor workers")


class Commanded(Worker):
    """A worker after a command, and its states before and after."""

    command: str
    from_state: str
    to_state: str


class Command(Asked):
    """A command to a worker, with a reason."""

    model_config = example(reason="Test pause", request_id="req_abc123")

    reason: Text | None = Field(default=None, max_length=LONGEST_KEY, description="Reason, recorded in the event log.")


class Terminate(Command):
    """A command to terminate a worker."""

    model_config = example(reason="the machine is given back", hard=False)

    hard: bool = Field(default=False, description="Stop its jobs immediately, without the grace period.")
    cancel_jobs: bool = Field(default=False, description="Cancel interrupted jobs. Default: return them to the queue.")


class Transition(BaseModel):
    """The number of moves from one state to another. `from` is empty for the creation of an entity."""

    entity: str
    source: str = Field(alias="from")
    to: str
    trigger: str
    count: int


class Stay(BaseModel):
    """The durations that entities stayed in a state, in seconds."""

    entity: str
    state: str
    count: int
    mean: float | None
    p50: float | None
    p95: float | None


class Refused(BaseModel):
    """The number of rejected moves that a state does not allow."""

    entity: str
    source: str = Field(alias="from")
    trigger: str
    count: int


class Repeated(BaseModel):
    """The number of requests with a key that was used before (`hit`), and with a new key (`miss`)."""

    hit: int
    miss: int
    hit_rate: float | None


class Metrics(BaseModel):
    """Metrics of workers and crews: moves, durations of states, rejected moves, and repeated requests."""

    at: str
    workers: dict[str, int]
    transitions: list[Transition]
    time_in_state: list[Stay]
    failed_transitions: list[Refused]
    idempotency: Repeated


COMMANDED = fails(errors.NotFound, errors.InvalidTransition, errors.LeaseLost, errors.KeyReused, errors.RequestInFlight)


@router.post(
    "/workers", status_code=201, response_model=Worker, responses=fails(errors.KeyReused, errors.RequestInFlight)
)
async def create(asked: NewWorker, caller: Supervises, does: Does) -> Response:
    """Register an IDLE worker for a process that has not started."""
    new = service.NewWorker(**asked.model_dump(exclude={"request_id"}))

    async def work(store: Store) -> dict[str, Any]:
        return worker(await service.create(store, caller.tenant_id, new, service.Wish(caller.actor)))

    return await does(asked, work, status=201)


@router.get("/metrics", response_model=Metrics, responses=fails())
async def metrics(caller: Reads, store: Db, whole: WholeDb) -> Response:
    """Show the metrics of the lifecycles of workers and crews."""
    return answer(only(Metrics, stats_supervision.figures(await stats.current(store, caller.tenant_id, whole))))


@router.post("/workers/{id}/start", response_model=Commanded, responses=COMMANDED)
async def start(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Start a worker: from IDLE to RUNNING, like its first claim."""
    return await _commanded(service.start, id, caller, does, asked or Command())


@router.post("/workers/{id}/pause", response_model=Commanded, responses=COMMANDED)
async def pause(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Pause a worker: it claims no jobs, not even in a claim in progress. Running jobs continue."""
    return await _commanded(service.pause, id, caller, does, asked or Command())


@router.post("/workers/{id}/resume", response_model=Commanded, responses=COMMANDED)
async def resume(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Resume a paused worker."""
    return await _commanded(service.resume, id, caller, does, asked or Command())


@router.post("/workers/{id}/drain", response_model=Commanded, responses=COMMANDED)
async def drain(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Drain a worker: it finishes its running jobs, without a time limit, and ends."""
    return await _commanded(service.drain, id, caller, does, asked or Command())


@router.post("/workers/{id}/terminate", response_model=Commanded, responses=COMMANDED)
async def terminate(
    id: str, caller: Supervises, does: Does, asked: Annotated[Terminate | None, Body()] = None
) -> Response:
    """Terminate a worker on any host. It claims no jobs. Its running jobs can finish within its grace period, or stop
    immediately with `hard`."""
    how = asked or Terminate()
    return await _commanded(service.terminate, id, caller, does, how, hard=how.hard, cancel_jobs=how.cancel_jobs)


async def _commanded(
    command: Callable[..., Awaitable[service.Answer]],
    id: str,
    caller: Principal,
    does: Once,
    asked: Command,
    **how: bool,
) -> Response:
    wish = service.Wish(caller.actor, asked.reason)

    async def work(store: Store) -> dict[str, Any]:
        done = await command(store, caller.tenant_id, id, wish, **how)
        states = {name: done[name] for name in ("command", "from_state", "to_state")}
        return {**only(Worker, done["worker"]), **states}

    return await does(asked, work)
