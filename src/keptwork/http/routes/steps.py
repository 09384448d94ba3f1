"""Routes of the steps of flows: list and show steps and their outputs, skip and reset steps."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query
from pydantic import BaseModel
from starlette.responses import Response

from keptwork import errors
from keptwork.core.validation import LONGEST_KEY
from keptwork.flows import approvals
from keptwork.flows import commands as flows
from keptwork.flows import queries as stories
from keptwork.flows.commands import FlowRef
from keptwork.flows.transaction import Actor, Row
from keptwork.http.auth import Principal, Reads, Writes, insist_answerer
from keptwork.http.dependencies import After, Db, Most, answer, fails, only, opened, sealed
from keptwork.http.idempotency import Does, Reason
from keptwork.store import Store
from keptwork.store.contract.budgets import Cost

router = APIRouter(prefix="/api/steps", tags=["steps"])

LIST = "steps"


class Step(BaseModel):
    """A step: its state, attempts, job, and error. If a failed step is reset, a new round starts: `attempts` and
    `started_at` apply to the latest round. For a step with `for_each`, they are those of the item with the most
    attempts."""

    id: str
    flow: str
    name: str
    state: str
    status: str
    attempts: int
    retry_count: int
    max_retries: int
    job: str | None
    error: str | None
    reason: str | None
    cost_micros: int | None
    lost_calls: int
    started_at: str | None
    completed_at: str | None
    updated_at: str


class Steps(BaseModel):
    """A page of steps of a flow, and the cursor of the next page."""

    steps: list[Step]
    next: str | None


class OwnStep(Step):
    """A step of a flow, with its inner flows."""

    flows: list[str]


class Mended(Step):
    """A step that was skipped or reset, and the new state of its flow."""

    flow_state: str


class Output(BaseModel):
    """The output of a step, or null if there is none."""

    id: str
    output: Any


MENDS = fails(errors.NotFound, errors.InvalidTransition, errors.KeyReused, errors.RequestInFlight)


@router.get("", response_model=Steps, responses=fails(errors.NotFound, errors.BadCursor))
async def listing(
    caller: Reads,
    store: Db,
    flow: Annotated[str, Query(max_length=LONGEST_KEY, description="ID of the run or workstream.")],
    after: After = None,
    limit: Most = 100,
) -> Response:
    """List the steps of a flow, in the order of its definition."""
    return await step_page(store, await flows.found(store, flow, caller.tenant_id), after, limit)


@router.get("/{id}", response_model=Step, responses=fails(errors.NotFound))
async def show(id: str, caller: Reads, store: Db) -> Response:
    """Show one step."""
    row = await stories.find_step(store, caller.tenant_id, id)
    return answer(step(await stories.step_shown(store, row), await stories.cost_of_step(store, row)))


@router.get("/{id}/output", response_model=Output, responses=fails(errors.NotFound))
async def output(id: str, caller: Reads, store: Db) -> Response:
    """Show the output of a step."""
    row = await stories.find_step(store, caller.tenant_id, id)
    return answer({"id": step(row)["id"], "output": await stories.output(store, row)})


@router.post("/{id}/skip", response_model=Mended, responses=MENDS)
async def skip(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Skip a step of a workstream. Later steps can start, and a workstream that failed only at this step resumes. To
    skip an approval, the key also needs the scope to decide it."""
    return await _mend(flows.skip, id, caller, does, asked or Reason(), gates=True)


@router.post("/{id}/reset", response_model=Mended, responses=MENDS)
async def reset(id: str, caller: Writes, does: Does, asked: Annotated[Reason | None, Body()] = None) -> Response:
    """Reset a failed workstream step so that it runs again, with all its retries."""
    return await _mend(flows.reset, id, caller, does, asked or Reason())


async def _mend(
    deed: Callable[[Store, Row, Actor], Awaitable[None]],
    id: str,
    caller: Principal,
    does: Does,
    asked: Reason,
    *,
    gates: bool = False,
) -> Response:
    async def work(store: Store) -> dict[str, Any]:
        row = await stories.find_step(store, caller.tenant_id, id)
        if gates:
            await approvals.insist_on_gate(store, row, partial(insist_answerer, caller))
        await deed(store, row, Actor(caller.actor, asked.reason))
        (now,) = await store.steps_by_key([row["id"]])
        flow = await flows.row_of(store, FlowRef(flows.kind_of(now), now["flow_id"]))
        return {**step(await stories.step_shown(store, now)), "flow_state": flow["state"]}

    return await does(asked, work)


async def step_page(store: Store, ref: FlowRef, after: str | None, limit: int) -> Response:
    """Return a page of steps of a flow."""
    page = await stories.step_page(store, ref, after=opened(LIST, after), limit=limit)
    shown = [step(row, page.costs.get(row["id"])) for row in page.steps]
    return answer({"steps": shown, "next": sealed(LIST, page.next)})


def step(row: Row, cost: Cost | None = None) -> dict[str, Any]:
    """Return a step as JSON data."""
    return only(Step, stories.step_json(row, cost))


def own_step(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step as its flow shows it."""
    return only(OwnStep, told)
