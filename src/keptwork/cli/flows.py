"""`keptwork runs`: flows in strict order, with approvals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.agents import budget_caps as spending
from keptwork.cli import screen
from keptwork.cli.approvals import By, Why
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.flow_commands import FlowId, Inputs, Reason, add_common, doer, money
from keptwork.cli.jobs import lines
from keptwork.errors import BadInput
from keptwork.flows import approvals, forks, start
from keptwork.flows import commands as flows
from keptwork.flows import queries as stories
from keptwork.flows.compiled import KINDS
from keptwork.flows.transaction import Actor

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.flows.queries import Story
    from keptwork.store import Store
    from keptwork.store.contract.budgets import Cost
    from keptwork.store.contract.waits_approvals import Approval


app = typer.Typer()
KIND = KINDS["run"]

add_common(app, KIND)
app.command("cancel")(
    doer(KIND, "cancel", flows.cancel, "{id} is {state}.", "Cancel a run with its steps, jobs, and inner flows.")
)

Gate = Annotated[
    str | None, typer.Option("--gate", metavar="STEP", help="Approval step. Required if several approvals are open.")
]


@app.command()
def approve(
    id: FlowId,
    gate: Gate = None,
    reason: Why = None,
    by: By = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Approve a request of a run and resume the run. You can repeat an approval."""
    _answer(id, approvals.APPROVED, gate, reason, by, tenant, db, as_json)


@app.command()
def reject(
    id: FlowId,
    gate: Gate = None,
    reason: Why = None,
    by: By = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Reject a request of a run, which then fails."""
    _answer(id, approvals.REJECTED, gate, reason, by, tenant, db, as_json)


def _answer(
    id: str,
    decision: str,
    gate: str | None,
    reason: str | None,
    by: str | None,
    tenant: str,
    db: str | None,
    as_json: bool,
) -> None:
    async def write(store: Store, tenant_id: int) -> tuple[Approval, str]:
        ref = await stories.find(store, KIND, tenant_id, id)
        found = await approvals.answer(store, ref, decision, gate=gate, by=by or operator(), comment=reason)
        (row,) = await store.rows(KIND.flow, [ref.id], ("state",))
        return found, row["state"]

    found, state = asyncio.run(with_tenant(db, tenant, write))
    said = f"{found.step} is {decision}, by {found.decided_by}; the run is {state}."
    screen.emit({**approvals.as_json(found), "run": id, "run_state": state}, lambda: said, as_json)


# `keptwork workstreams`: flows as graphs of steps, with retries, resumption, and forks.


workstreams_app = typer.Typer()
WORKSTREAM = KINDS["workstream"]
NOW = "{id} is {state}."

add_common(workstreams_app, WORKSTREAM)
workstreams_app.command("retry")(
    doer(
        WORKSTREAM,
        "retry",
        flows.retry,
        NOW,
        "Retry the unsuccessful steps of a failed workstream, even if no retries are left.",
    )
)
workstreams_app.command("resume")(
    doer(WORKSTREAM, "resume", flows.resume, NOW, "Check a whole workstream again, and start every step that can run.")
)
workstreams_app.command("abandon")(
    doer(WORKSTREAM, "abandon", flows.cancel, NOW, "Abandon a workstream with its steps, jobs, and inner flows.")
)


@workstreams_app.command(
    "cancel", hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def cancel(id: FlowId) -> None:
    """Point users of `runs cancel` to `workstreams abandon`."""
    raise BadInput(what=f"a workstream is not cancelled but abandoned: keptwork workstreams abandon {id}")


@workstreams_app.command()
def fork(
    id: FlowId,
    from_: Annotated[str, typer.Option("--from", metavar="STEP", help="First step to run again.")],
    inputs: Inputs = None,
    reason: Reason = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Fork a workstream: run it again from a step on, as a new workstream.

    The fork keeps the results of earlier steps. Inputs that you omit keep their values.
    """

    async def make(store: Store, tenant_id: int) -> Story:
        ref = await stories.find(store, WORKSTREAM, tenant_id, id)
        old = await stories.story(store, ref)
        given = {} if old.template is None else start.given(start.flow_of(old.template), inputs or [])
        made = await forks.fork(store, ref, from_, given, actor=Actor(operator(), reason))
        return await stories.story(store, made)

    story = asyncio.run(with_tenant(db, tenant, make))
    kept = sum(row["completed_at"] is not None for row in story.steps)
    said = f"{story.public_id} runs from {from_} on; {kept} of {len(story.steps)} steps are kept."
    screen.emit(stories.story_json(story), lambda: said, as_json)


# `keptwork steps`: list, show, skip, and reset the steps of flows.


steps_app = typer.Typer()
Row = dict[str, Any]

Id = Annotated[str, typer.Argument(metavar="STEP", help="Public ID, or FLOW/NAME.")]


@steps_app.command("list")
def list_(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="Public ID of the run or workstream.")],
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List the steps of a flow, in the order of its definition."""

    async def read(store: Store, tenant_id: int) -> tuple[list[Row], dict[int, Cost], int]:
        ref = await flows.found(store, flow, tenant_id)
        rows = await stories.steps_of(store, ref)
        return rows, await spending.of_steps(store, await flows.row_of(store, ref)), await store.now()

    rows, costs, now = asyncio.run(with_tenant(db, tenant, read))
    shown = [stories.step_json(row, costs.get(row["id"])) for row in rows]
    screen.emit({"steps": shown}, lambda: _table(rows, now), as_json)


@steps_app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show one step: its state, attempts, job, and error."""

    async def read(store: Store, tenant_id: int) -> tuple[Row, Cost | None, int]:
        row = await stories.find_step(store, tenant_id, id)
        return await stories.step_shown(store, row), await stories.cost_of_step(store, row), await store.now()

    row, cost, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(stories.step_json(row, cost), lambda: "\n".join(lines(_facts(row, cost, now))), as_json)


@steps_app.command()
def output(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Print the output of a step as JSON."""

    async def read(store: Store, tenant_id: int) -> Any:
        return await stories.output(store, await stories.find_step(store, tenant_id, id))

    found = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(found, lambda: stories.as_text(found), as_json)


@steps_app.command()
def skip(
    id: Id, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False
) -> None:
    """Skip a step of a workstream. Later steps can start, and a workstream that failed only at this step resumes."""
    _mend(flows.skip, id, reason, tenant, db, as_json)


@steps_app.command()
def reset(
    id: Id, reason: Reason = None, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False
) -> None:
    """Reset a failed workstream step so that it runs again, with all its retries."""
    _mend(flows.reset, id, reason, tenant, db, as_json)


def _mend(
    deed: Callable[[Store, Row, Actor], Awaitable[None]],
    id: str,
    reason: str | None,
    tenant: str,
    db: str | None,
    as_json: bool,
) -> None:
    async def change(store: Store, tenant_id: int) -> tuple[Row, str]:
        step = await stories.find_step(store, tenant_id, id)
        await deed(store, step, Actor(operator(), reason))
        (row,) = await store.steps_by_key([step["id"]])
        (flow,) = await store.rows(flows.kind_of(row).flow, [row["flow_id"]], ("state",))
        return await stories.step_shown(store, row), flow["state"]

    row, flow_state = asyncio.run(with_tenant(db, tenant, change))
    shown = stories.step_json(row)
    said = f"{row['name']} is {row['state']}; {shown['flow']} is {flow_state}."
    screen.emit({**shown, "flow_state": flow_state}, lambda: said, as_json)


def _table(rows: list[Row], now: int) -> RenderableType:
    table = screen.table("step", "name", "state", "tries", "took", "")
    table.columns[0].no_wrap = True
    for row in rows:
        took = screen.took(stories.took_us(row, now))
        said = stories.remark(row)
        id = stories.step_json(row)["id"]
        table.add_row(id, row["name"], row["state"], str(row["attempts"] or ""), took, said)
    return table


def _facts(row: Row, cost: Cost | None, now: int) -> Iterator[tuple[str, Any]]:
    shown = stories.step_json(row, cost)
    yield "step", shown["id"]
    yield "name", row["name"]
    yield "flow", shown["flow"]
    yield "state", f"{row['state']}, {screen.ago(row['updated_at'], now)}"
    yield "tries", row["attempts"]
    yield "took", screen.took(stories.took_us(row, now)) if row["started_at"] is not None else None
    yield "job", shown["job"]
    yield "cost", cost and money(cost)
    yield "error", row["error"]
    yield "reason", row["reason"]
