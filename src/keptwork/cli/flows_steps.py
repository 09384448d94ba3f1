"""`keptwork steps`: list, show, skip, and reset the steps of flows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.agents import budget_caps_costs as spending
from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.flow_commands import Reason, money
from keptwork.cli.jobs import lines
from keptwork.flows import commands as flows
from keptwork.flows import queries as stories
from keptwork.flows.transaction import Actor

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store import Store
    from keptwork.store.contract.budgets import Cost

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
