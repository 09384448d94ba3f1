"""Models of workers, for supervision and for the workers themselves, and the routes that both share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.ids_entities import public_id, states_named
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.core.validation import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Most, Name, Text, answer, fails, only
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.idempotency import Asked, example
from keptwork.http.routes.events import Moved, shown
from keptwork.http.routes.jobs import States
from keptwork.store.contract.records import WorkerFilter
from keptwork.store.contract.workers import ALIVE
from keptwork.workers import commands as service

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
