"""Supervision: workers made, seen and commanded, and the figures of it all. What a worker itself says is elsewhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LONGEST_KEY
from keptwork.http.auth import Principal, Reads, Supervises
from keptwork.http.idempotency import Asked, Does, Once, example
from keptwork.http.pages import Db, Text, WholeDb, answer, fails, only
from keptwork.http.routes.worker_models import NewWorker, Worker, add_reads, worker
from keptwork.service import stats, supervision
from keptwork.service import workers as service
from keptwork.store import Store

router = APIRouter(prefix="/api/supervisor", tags=["supervisor"])
add_reads(router, "/workers", "supervisor workers")


class Commanded(Worker):
    """A worker after a command, and the states it was in before and is in now."""

    command: str
    from_state: str
    to_state: str


class Command(Asked):
    """Why a worker is commanded so."""

    model_config = example(reason="Test pause", request_id="req_abc123")

    reason: Text | None = Field(default=None, max_length=LONGEST_KEY, description="It goes into the event log.")


class Terminate(Command):
    """How a worker is to end."""

    model_config = example(reason="the machine is given back", hard=False)

    hard: bool = Field(default=False, description="Stop its jobs at once, without its grace.")
    cancel_jobs: bool = Field(default=False, description="Cancel the jobs cut short; else they go back to the queue.")


class Transition(BaseModel):
    """How often something went from one state to another; from none when it was made."""

    entity: str
    source: str = Field(alias="from")
    to: str
    trigger: str
    count: int


class Stay(BaseModel):
    """How long things stayed in a state, in seconds."""

    entity: str
    state: str
    count: int
    mean: float | None
    p50: float | None
    p95: float | None


class Refused(BaseModel):
    """How often a move was asked for that is not allowed in that state."""

    entity: str
    source: str = Field(alias="from")
    trigger: str
    count: int


class Repeated(BaseModel):
    """How many requests came under a key that was used before, and how many did not."""

    hit: int
    miss: int
    hit_rate: float | None


class Metrics(BaseModel):
    """How often workers and crews went from one state to another, how long they stayed in each, which moves were
    refused them, and how many requests had been sent before."""

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
    """Makes a worker, IDLE, for a process to be."""
    new = service.NewWorker(**asked.model_dump(exclude={"request_id"}))

    async def work(store: Store) -> dict[str, Any]:
        return worker(await service.create(store, caller.tenant_id, new, service.Wish(caller.actor)))

    return await does(asked, work, status=201)


@router.get("/metrics", response_model=Metrics, responses=fails())
async def metrics(caller: Reads, store: Db, whole: WholeDb) -> Response:
    """The figures of the state machines of workers and crews."""
    return answer(only(Metrics, supervision.figures(await stats.current(store, caller.tenant_id, whole))))


@router.post("/workers/{id}/start", response_model=Commanded, responses=COMMANDED)
async def start(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Lets a worker begin: from IDLE to RUNNING, as its first claim does."""
    return await _commanded(service.start, id, caller, does, asked or Command())


@router.post("/workers/{id}/pause", response_model=Commanded, responses=COMMANDED)
async def pause(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Lets a worker claim nothing from now on, not even in a claim under way; what it runs goes on."""
    return await _commanded(service.pause, id, caller, does, asked or Command())


@router.post("/workers/{id}/resume", response_model=Commanded, responses=COMMANDED)
async def resume(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Lets a paused worker claim again."""
    return await _commanded(service.resume, id, caller, does, asked or Command())


@router.post("/workers/{id}/drain", response_model=Commanded, responses=COMMANDED)
async def drain(id: str, caller: Supervises, does: Does, asked: Annotated[Command | None, Body()] = None) -> Response:
    """Asks a worker to finish what it has begun, however long that takes, and to end."""
    return await _commanded(service.drain, id, caller, does, asked or Command())


@router.post("/workers/{id}/terminate", response_model=Commanded, responses=COMMANDED)
async def terminate(
    id: str, caller: Supervises, does: Does, asked: Annotated[Terminate | None, Body()] = None
) -> Response:
    """Ends a worker, on whatever machine. It claims nothing from now on; what it runs may end within its grace, or is
    stopped at once if it is to be `hard`."""
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
