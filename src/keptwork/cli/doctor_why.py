"""`keptwork why`: show why a job, crew, step, or flow is waiting."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, with_tenant
from keptwork.core.ids_entities import public_id
from keptwork.diagnostics import diagnose
from keptwork.diagnostics.why_jobs import as_json as reason_json

if TYPE_CHECKING:
    from keptwork.diagnostics.why_jobs import Reason
    from keptwork.store import Store


Id = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="Public ID of the job, crew, step, run, or workstream. A step also by FLOW/NAME."
    ),
]


def why(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show why a job, crew, step, or flow is waiting: each cause, most immediate first, and when it clears."""

    async def read(store: Store, tenant_id: int) -> tuple[diagnose.Told, int]:
        return await diagnose.explained(store, tenant_id, id), await store.now()

    told, now = asyncio.run(with_tenant(db, tenant, read))
    state = told.row["state"]
    shown = {"id": public_id(told.lifecycle.name, told.row["id"]), "state": state, "status": state}
    reasons = [reason_json(reason) for reason in told.reasons]
    screen.emit({**shown, "reasons": reasons}, lambda: _reasons_told(told, now), as_json)


def _reasons_told(told: diagnose.Told, now: int) -> str:
    row, reasons = told.row, told.reasons
    name = row.get("kind") or row.get("name")
    head = f"{public_id(told.lifecycle.name, row['id'])} ({name}) is {row['state']}"
    lines = [
        f"{head}: {_reason_line(reasons[0], now)}",
        *(f"  also: {_reason_line(reason, now)}" for reason in reasons[1:]),
    ]
    todos = dict.fromkeys(reason.todo for reason in reasons if reason.todo)
    return "\n".join([*lines, *(f"  try: {todo}" for todo in todos)])


def _reason_line(reason: Reason, now: int) -> str:
    if reason.clears_at is None:
        return reason.says
    at = reason.clears_at
    return f"{reason.says}; {reason.then} {screen.ago(at, now)}, at {screen.moment(at)}"
