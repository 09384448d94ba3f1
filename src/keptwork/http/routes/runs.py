"""Routes of runs: flows in strict order, with approvals.

The same routes are at /api/runs and at /runs.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, Field
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_NAME
from keptwork.flows import approvals, forks
from keptwork.flows import commands as flows
from keptwork.flows import queries as stories
from keptwork.flows.compiled import KINDS
from keptwork.flows.transaction import Actor
from keptwork.http.auth import Adds, Approves, Principal, Writes, insist_answerer
from keptwork.http.dependencies import JsonObject, Text, Trace, fails, only
from keptwork.http.idempotency import Does, Reason, example
from keptwork.http.routes.approvals import Approval, Decision
from keptwork.http.routes.approvals import shown as approval_shown
from keptwork.http.routes.flows import (
    CHANGES,
    MOST_INPUTS,
    STARTS,
    Flow,
    NewFlow,
    WholeFlow,
    add_common,
    done_to,
    started,
    whole,
)
from keptwork.http.submitted_flows import Defines
from keptwork.store import Store

KIND = KINDS["run"]


class Run(Flow):
    """A run."""


class Runs(BaseModel):
    """A page of runs, and the cursor of the next page."""

    runs: list[Run]
    next: str | None


class WholeRun(WholeFlow):
    """A run with all of its details."""


class StartedRun(Run):
    """The run. `created` is false if the key was used before: the run is then the existing one."""

    created: bool


class NewRun(NewFlow):
    """A run to start. Without a `key`, the request's idempotency key is its unique key: one run per key, without
    expiry."""

    model_config = example(template="release", inputs={"version": "1.2"}, request_id="order-17")


class Answer(Decision):
    """A decision on an approval of a run."""

    model_config = example(gate="sign", reason="looked at by two of us")

    gate: Text | None = Field(
        default=None,
        min_length=1,
        max_length=LONGEST_NAME,
        description=(
            "Approval step. Required if several approvals are open, so that a repeated request decides no other."
        ),
    )


class AnsweredRun(Run):
    """The run after a decision, and the approval."""

    approval: Approval


ANSWERS = fails(
    errors.NotFound,
    errors.NothingAsked,
    errors.AlreadyDecided,
    errors.ApprovalChanged,
    errors.KeyReused,
    errors.RequestInFlight,
)


async def create(asked: NewRun, caller: Adds, defines: Defines, does: Does, trace: Trace) -> Response:
    """Start a run, from a template or from a definition in the request. Workers run it."""
    key = asked.key or does.key(asked)
    return await started(KIND, StartedRun, asked, caller, defines, does, key=key, trace_id=trace)


async def approve(id: str, caller: Approves, does: Does, asked: Annotated[Answer | None, Body()] = None) -> Response:
    """Approve a request of a run and resume it. You can repeat an approval. If the run has no request, the call is
    rejected."""
    return await _answered(id, approvals.APPROVED, caller, does, asked or Answer())


async def reject(id: str, caller: Approves, does: Does, asked: Annotated[Answer | None, Body()] = None) -> Response:
    """Reject a request of a run, which then fails."""
    return await _answered(id, approvals.REJECTED, caller, does, asked or Answer())


async def cancel(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Cancel a run with its steps, jobs, and inner flows."""
    return await done_to(KIND, Run, flows.cancel, id, caller, does, asked or Reason())


async def _answered(id: str, decision: str, caller: Principal, does: Does, asked: Answer) -> Response:
    async def work(store: Store) -> dict[str, Any]:
        ref = await stories.find(store, KIND, caller.tenant_id, id)
        found = await approvals.answer(
            store,
            ref,
            decision,
            gate=asked.gate,
            by=caller.actor,
            comment=asked.reason,
            insist=partial(insist_answerer, caller),
        )
        row = only(Run, stories.flow_json(KIND, await flows.row_of(store, ref)))
        return {**row, "approval": approval_shown(found)}

    return await does(asked, work)


def _mounted(prefix: str) -> APIRouter:
    routes = APIRouter(prefix=prefix, tags=["runs"])
    add_common(routes, KIND, Runs, Run, WholeRun)
    routes.post("", status_code=201, response_model=StartedRun, responses=STARTS)(create)
    routes.post("/{id}/approve", response_model=AnsweredRun, responses=ANSWERS)(approve)
    routes.post("/{id}/reject", response_model=AnsweredRun, responses=ANSWERS)(reject)
    routes.post("/{id}/cancel", response_model=Run, responses=CHANGES)(cancel)
    return routes


router, short_router = _mounted("/api/runs"), _mounted("/runs")


# Routes of workstreams: flows as graphs of steps, with retries, resumption, and forks.


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
