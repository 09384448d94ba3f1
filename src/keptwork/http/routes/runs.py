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
from keptwork.flows import approvals, approvals_gate_answers
from keptwork.flows import commands as flows
from keptwork.flows import queries as stories
from keptwork.flows.compiled import KINDS
from keptwork.http.auth import Adds, Approves, Principal, Writes, insist_answerer
from keptwork.http.dependencies import Text, fails, only
from keptwork.http.dependencies_trace import Trace
from keptwork.http.idempotency import Does, Reason, example
from keptwork.http.routes.approvals import Approval, Decision
from keptwork.http.routes.approvals import shown as approval_shown
from keptwork.http.routes.flows import CHANGES, STARTS, add_common, done_to, started
from keptwork.http.routes.flows_models import Flow, NewFlow, WholeFlow
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
        found = await approvals_gate_answers.answer(
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
