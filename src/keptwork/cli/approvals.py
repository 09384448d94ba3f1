"""`keptwork approvals`: list, show, approve, and reject approval requests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.cli.jobs import lines
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB
from keptwork.flows import approvals as service

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keptwork.store.contract.store import Store
    from keptwork.store.contract.waits_approvals import Approval

app = typer.Typer()

Id = Annotated[str, typer.Argument(metavar="ID", help="Public ID of the approval.")]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the reviewer. Default: the current user.")
]
Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Reason, passed to the job.")]


@app.command("list")
def list_(
    all: Annotated[bool, typer.Option("--all", help="Include decided approvals.")] = False,
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of results.")] = 50,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """List pending approvals, newest first."""

    async def read(store: Store, tenant_id: int) -> tuple[list[Approval], int]:
        return await service.listed(store, tenant_id, open_only=not all, limit=limit), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(
        {"approvals": [service.as_json(one) for one in found]},
        lambda: _table(found, now) if found else "Nothing waits for a decision." if not all else "No approvals.",
        as_json,
    )


@app.command()
def show(id: Id, tenant: Tenant = DEFAULT_TENANT_NAME, db: Db = None, as_json: screen.Json = False) -> None:
    """Show an approval: its exact details and its decision."""

    async def read(store: Store, tenant_id: int) -> tuple[Approval, int]:
        return await service.find(store, tenant_id, id), await store.now()

    found, now = asyncio.run(with_tenant(db, tenant, read))
    screen.emit(service.as_json(found), lambda: "\n".join(lines(_facts(found, now))), as_json)


@app.command()
def approve(
    id: Id,
    reason: Why = None,
    by: By = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Approve a request and resume its job.

    You can repeat an approval, but you cannot approve a rejected request.
    """
    _decide(id, service.APPROVED, reason, by, tenant, db, as_json)


@app.command()
def reject(
    id: Id,
    reason: Why = None,
    by: By = None,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Reject a request. Its job fails unless it handles the rejection."""
    _decide(id, service.REJECTED, reason, by, tenant, db, as_json)


def _decide(
    id: str, decision: str, reason: str | None, by: str | None, tenant: str, db: str | None, as_json: bool
) -> None:
    async def write(store: Store, tenant_id: int) -> Approval:
        return await service.decide(store, tenant_id, id, decision, by=by or operator(), comment=reason)

    found: Approval = asyncio.run(with_tenant(db, tenant, write))
    said = f"{found.public_id} is {decision}, by {found.decided_by}."
    screen.emit(service.as_json(found), lambda: said, as_json)


def _table(found: list[Approval], now: int) -> RenderableType:
    table = screen.table("approval", "question", "for", "")
    table.columns[0].no_wrap = True
    for one in found:
        table.add_row(one.public_id, one.question, one.scope or "anyone", _standing(one, now))
    return table


def _standing(one: Approval, now: int) -> str:
    if one.decision is not None and one.decided_at is not None:
        return f"{one.decision} {screen.ago(one.decided_at, now)}"
    asked = f"asked {screen.ago(one.created_at, now)}"
    return asked if one.expires_at is None else f"{asked}, expires {screen.ago(one.expires_at, now)}"


def _facts(one: Approval, now: int) -> Iterator[tuple[str, Any]]:
    yield "approval", one.public_id
    yield "question", one.question
    yield "details", one.details
    yield "for", one.scope or "anyone"
    yield "job", None if one.job_id is None else public_id(JOB.name, one.job_id)
    yield "state", _standing(one, now)
    yield "by", one.decided_by
    yield "reason", one.comment
    yield "digest", f"sha256:{one.digest}"
