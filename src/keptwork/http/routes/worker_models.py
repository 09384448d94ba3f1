"""Workers as the API shows them, to those who supervise them and to themselves."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.bounds import LARGEST_INT, LONGEST_KEY, LONGEST_NAME
from keptwork.http.auth import Reads
from keptwork.http.cursors import opened, sealed
from keptwork.http.idempotency import Asked, example
from keptwork.http.pages import After, Db, Most, Name, Text, answer, fails, only
from keptwork.http.routes.events import Moved, shown
from keptwork.http.routes.jobs import States
from keptwork.lifecycle import JOB, WORKER
from keptwork.service import workers as service
from keptwork.service.entities import public_id, states_named
from keptwork.store.records import WorkerFilter
from keptwork.store.worker_list import ALIVE

Served = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]


class Ending(BaseModel):
    """How a worker is to come to an end: `drain` at its leisure, `soft` within its grace, `hard` at once; what becomes
    of jobs that are cut short (`release` or `cancel`), who wants it and why."""

    how: str
    jobs: str
    by: str | None
    reason: str | None


class Worker(BaseModel):
    """A worker, as lists show it."""

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
    """A worker, and how many jobs it holds."""

    jobs_held: int


class Workers(BaseModel):
    """Some workers, and where to go on if there are more."""

    workers: list[Listed]
    next: str | None


class HeldJob(BaseModel):
    """A job that a worker holds."""

    id: str
    kind: str


class WholeWorker(Worker):
    """A worker with the jobs of this tenant that it holds, what it last said it does, and all that happened to it."""

    doing: Any
    jobs: list[HeldJob]
    events: list[Moved]


class NewWorker(Asked):
    """A worker that some process will be; until that says its first word, it has no heartbeat to miss."""

    model_config = example(workspace_id="ws_test", name="gpu-1", queues=["render"], metadata={"rack": 4})

    workspace_id: Text = Field(default=service.USUAL_WORKSPACE, min_length=1, max_length=LONGEST_KEY)
    name: Text | None = Field(default=None, min_length=1, max_length=LONGEST_KEY)
    queues: list[Served] = Field(default=[], max_length=service.MOST_SERVED)
    kinds: list[Served] = Field(default=[], max_length=service.MOST_SERVED)
    concurrency: int | None = Field(default=None, ge=1, le=LARGEST_INT)
    version: Text = Field(default="", max_length=LONGEST_NAME)
    metadata: dict[str, Any] | None = Field(default=None, description="Whatever is worth knowing of it; 16 KiB.")


def worker(row: service.Row) -> dict[str, Any]:
    """A worker as lists show it."""
    return only(Worker, service.as_json(row))


def add_reads(router: APIRouter, path: str, cursors: str) -> None:
    """The routes that list workers and show one, at an address; `cursors` tells its cursors from those of others."""

    @router.get(path, response_model=Workers, responses=fails(errors.BadCursor))
    async def listing(
        caller: Reads,
        store: Db,
        state: States = None,
        host: Name = None,
        ended: Annotated[bool, Query(description="Those that have ended, too.")] = False,
        after: After = None,
        limit: Most = 50,
    ) -> Response:
        """The workers that have not ended, the newest first: what they serve and when they were last heard of."""
        states = states_named(WORKER, state or []) or (None if ended else ALIVE)
        wanted = WorkerFilter(caller.tenant_id, states, host)
        page = await service.page(store, wanted, after=opened(cursors, after), limit=limit)
        found = [{**worker(row), "jobs_held": page.jobs[row["id"]]} for row in page.workers]
        return answer({"workers": found, "next": sealed(cursors, page.next)})

    @router.get(f"{path}/{{id}}", response_model=WholeWorker, responses=fails(errors.NotFound))
    async def show(id: str, caller: Reads, store: Db) -> Response:
        """Everything about one worker: what it serves, which jobs of this tenant it holds, and what happened to it."""
        story = await service.show(store, caller.tenant_id, id)
        own = [job for job in story.jobs if job["tenant_id"] == caller.tenant_id]
        held = [{"id": public_id(JOB.name, job["id"]), "kind": job["kind"]} for job in own]
        events = [shown(event) for event in story.events]
        return answer({**worker(story.worker), "doing": story.doing, "jobs": held, "events": events})
