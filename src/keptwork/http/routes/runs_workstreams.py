"""Routes of workstreams: flows as graphs of steps, with retries, resumption, and forks."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork.core.validation import LONGEST_NAME
from keptwork.flows import commands as flows
from keptwork.flows import forks
from keptwork.flows import queries as stories
from keptwork.flows.compiled import KINDS
from keptwork.flows.transaction import Actor
from keptwork.http.auth import Adds, Writes, insist_answerer
from keptwork.http.dependencies import JsonObject, Text, only
from keptwork.http.dependencies_trace import Trace
from keptwork.http.idempotency import Does, Reason, example
from keptwork.http.routes.flows import CHANGES, STARTS, add_common, done_to, started, whole
from keptwork.http.routes.flows_models import MOST_INPUTS, Flow, NewFlow, WholeFlow
from keptwork.http.submitted_flows import Defines
from keptwork.store import Store

WORKSTREAM = KINDS["workstream"]

workstreams_router = APIRouter(prefix="/api/workstreams", tags=["workstreams"])


class Workstream(Flow):
    """A workstream: its retries, and the workstream from which it was forked."""

    retry_count: int
    max_retries: int
    forked_from: str | None


class Workstreams(BaseModel):
    """A page of workstreams, and the cursor of the next page."""

    workstreams: list[Workstream]
    next: str | None


class WholeWorkstream(WholeFlow, Workstream):
    """A workstream with all of its details."""

    forks: list[str]


class StartedWorkstream(Workstream):
    """The workstream. `created` is false if the key was used before: the workstream is then the existing one."""

    created: bool


class NewWorkstream(NewFlow):
    """A workstream to start."""

    model_config = example(
        definition={
            "name": "release-check",
            "steps": [
                {"id": "lint", "tool": "ruff", "args": ["check", "src"]},
                {"id": "sign", "approval": {"by": "ops"}, "depends_on": ["lint"]},
            ],
        },
        key="release-1.2",
    )


class Fork(Reason):
    """The step at which a fork starts. Omitted inputs keep their values."""

    model_config = example(from_step="test", inputs={"version": "1.3"}, reason="the test was wrong")

    from_step: Text = Field(min_length=1, max_length=LONGEST_NAME)
    inputs: JsonObject = Field(default_factory=dict, max_length=MOST_INPUTS)


add_common(workstreams_router, WORKSTREAM, Workstreams, Workstream, WholeWorkstream)


@workstreams_router.post("", status_code=201, response_model=StartedWorkstream, responses=STARTS, name="create")
async def create_workstream(asked: NewWorkstream, caller: Adds, defines: Defines, does: Does, trace: Trace) -> Response:
    """Start a workstream, from a template or from a definition in the request. Workers run it."""
    return await started(WORKSTREAM, StartedWorkstream, asked, caller, defines, does, key=asked.key, trace_id=trace)


@workstreams_router.post("/{id}/retry", response_model=Workstream, responses=CHANGES)
async def retry(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Retry the unsuccessful steps of a failed workstream, even if no retries are left."""
    return await done_to(WORKSTREAM, Workstream, flows.retry, id, caller, does, asked or Reason())


@workstreams_router.post("/{id}/resume", response_model=Workstream, responses=CHANGES)
async def resume(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Check a whole workstream again: start every step that can run, and end what is finished."""
    return await done_to(WORKSTREAM, Workstream, flows.resume, id, caller, does, asked or Reason())


@workstreams_router.post("/{id}/abandon", response_model=Workstream, responses=CHANGES)
async def abandon(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Abandon a workstream with its steps, jobs, and inner flows."""
    return await done_to(WORKSTREAM, Workstream, flows.cancel, id, caller, does, asked or Reason())


@workstreams_router.post("/{id}/fork", status_code=201, response_model=WholeWorkstream, responses=CHANGES)
async def fork(id: str, asked: Fork, caller: Adds, does: Does) -> Response:
    """Fork a workstream: run it again from a step on, as a new workstream. The fork keeps the results of earlier steps.
    To keep earlier approvals, the key also needs the scopes to give them."""

    async def work(store: Store) -> dict[str, Any]:
        ref = await stories.find(store, WORKSTREAM, caller.tenant_id, id)
        await forks.insist_on_kept_answers(store, ref, asked.from_step, partial(insist_answerer, caller))
        made = await forks.fork(store, ref, asked.from_step, asked.inputs, actor=Actor(caller.actor, asked.reason))
        return only(WholeWorkstream, whole(await stories.story(store, made)))

    return await does(asked, work, status=201)
