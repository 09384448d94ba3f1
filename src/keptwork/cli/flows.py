"""`keptwork runs`: flows in strict order, with approvals."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.approvals import By, Why
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.flow_commands import FlowId, add_common, doer
from keptwork.flows import approvals, approvals_gate_answers
from keptwork.flows import commands as flows
from keptwork.flows import queries as stories
from keptwork.flows.compiled import KINDS

if TYPE_CHECKING:
    from keptwork.store import Store
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
        found = await approvals_gate_answers.answer(
            store, ref, decision, gate=gate, by=by or operator(), comment=reason
        )
        (row,) = await store.rows(KIND.flow, [ref.id], ("state",))
        return found, row["state"]

    found, state = asyncio.run(with_tenant(db, tenant, write))
    said = f"{found.step} is {decision}, by {found.decided_by}; the run is {state}."
    screen.emit({**approvals.as_json(found), "run": id, "run_state": state}, lambda: said, as_json)
