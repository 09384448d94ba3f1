"""Routes of supervision: create, show, and control workers, and show their metrics.

Calls that a worker makes itself are in `workers`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.ids import public_id, states_named
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.core.validation import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Principal, Reads, Supervises
from keptwork.http.dependencies import After, Db, Most, Name, Text, WholeDb, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Asked, Does, Once, example
from keptwork.http.routes.events import Moved, shown
from keptwork.http.routes.jobs import States
from keptwork.observability import stats
from keptwork.store import Store
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.workers import commands as service

# Models of workers, for supervision and for the workers themselves, and the routes that both share.


Served = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]


class Ending(BaseModel):
    """How a worker is to end: `drain` without a time limit, `soft` within its grace period, `hard` immediately. Also
    what happens to interrupted jobs (`release` or `cancel`), who requested the end, and why."""

    how: str
    jobs: str
    by: str | None
    reason: str | None


class Worker(BaseModel):
    """A worker, as in lists."""

    id: str
    name: str
    state: str
    status: str
    workspace_id: str
    host: str | None
    pid: int | None
    supervisor: str | None
    queues: list[str]
    kinds: list[str]
    concurrency: int | None
    version: str | None
    metadata: Any
    actor: str | None
    reason: str | None
    asked_to_end: Ending | None
    created_at: str
    updated_at: str
    started_at: str | None
    completed_at: str | None
    seen_at: str | None


class Listed(Worker):
    """A worker, and the number of jobs that it holds."""

    jobs_held: int


class Workers(BaseModel):
    """A page of workers, and the cursor of the next page."""

    workers: list[Listed]
    next: str | None


class HeldJob(BaseModel):
    """A job that a worker holds."""

    id: str
    kind: str


class WholeWorker(Worker):
    """A worker with this tenant's jobs that it holds, its last report about itself, and its history."""

    doing: Any
    jobs: list[HeldJob]
    events: list[Moved]


class NewWorker(Asked):
    """A worker to register for a process. It has no heartbeat to miss until the process makes its first call."""

    model_config = example(workspace_id="ws_test", name="gpu-1", queues=["render"], metadata={"rack": 4})

    workspace_id: Text = Field(default=service.USUAL_WORKSPACE, min_length=1, max_length=LONGEST_KEY)
    name: Text | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)
    queues: list[Served] = Field(default=[], max_length=service.MOST_SERVED)
    kinds: list[Served] = Field(default=[], max_length=service.MOST_SERVED)
    concurrency: int | None = Field(default=None, ge=1, le=LARGEST_INT)
    version: Text = Field(default="", max_length=LONGEST_NAME)
    metadata: dict[str, Any] | None = Field(
        default=None, description="Additional data about the worker. Maximum: 16 KiB."
    )


def worker(row: service.Row) -> dict[str, Any]:
    """Return a worker as lists show it."""
    return only(Worker, service.as_json(row))


def add_reads(router: APIRouter, path: str, cursors: str) -> None:
    """Add the routes that list workers and show one. `cursors` separates their cursors from those of other lists."""

    @router.get(path, response_model=Workers, responses=fails(errors.BadCursor))
    async def listing(
        caller: Reads,
        store: Db,
        state: States = None,
        host: Name = None,
        ended: Annotated[bool, Query(description="Include workers that have ended.")] = False,
        after: After = None,
        limit: Most = 50,
    ) -> Response:
        """List workers that have not ended, newest first: what they serve, and their last heartbeat."""
        states = states_named(WORKER, state or []) or (None if ended else ALIVE)
        wanted = WorkerFilter(caller.tenant_id, states, host)
        page = await service.page(store, wanted, after=opened(cursors, after), limit=limit)
        found = [{**worker(row), "jobs_held": page.jobs[row["id"]]} for row in page.workers]
        return answer({"workers": found, "next": sealed(cursors, page.next)})

    @router.get(f"{path}/{{id}}", response_model=WholeWorker, responses=fails(errors.NotFound))
    async def show(id: str, caller: Reads, store: Db) -> Response:
        """Show one worker: what it serves, this tenant's jobs that it holds, and its history."""
        story = await service.show(store, caller.tenant_id, id)
        own = [job for job in story.jobs if job["tenant_id"] == caller.tenant_id]
        held = [{"id": public_id(JOB.name, job["id"]), "kind": job["kind"]} for job in own]
        events = [shown(event) for event in story.events]
        return answer({**worker(story.worker), "doing": story.doing, "jobs": held, "events": events})


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
    return answer(only(Metrics, stats.figures(await stats.current(store, caller.tenant_id, whole))))


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
