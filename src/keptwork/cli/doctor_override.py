"""`keptwork override`: an operator's correction of a state that no move can repair."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, operator, with_tenant
from keptwork.diagnostics import overrides as service

if TYPE_CHECKING:
    from keptwork.diagnostics.overrides import Overridden
    from keptwork.store import Store

DOCTOR = "keptwork doctor --fix"


def override(
    id: Annotated[
        str, typer.Argument(metavar="ID", help="Public ID of an entity with a lifecycle. A step also by FLOW/NAME.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="STATE", help="New state: any state of the lifecycle.")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded in the event log.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Force an entity into a state, regardless of its current state and its lifecycle.

    Every history marks an override as such. Try declared repairs first: keptwork doctor --fix
    """

    async def write(store: Store, tenant_id: int) -> Overridden:
        return await service.overridden(store, tenant_id, id, to, reason=reason, actor=operator(), dry_run=dry_run)

    done = asyncio.run(with_tenant(db, tenant, write))
    screen.emit(service.as_json(done), lambda: "\n".join(_override_told(done, dry_run)), as_json)


def _override_told(done: Overridden, dry_run: bool) -> list[str]:
    way = f"{done.before['state']} → {done.state}"
    if done.before["state"] == done.state:
        return [f"{done.public_id} is {done.state} already; nothing was changed."]
    if dry_run:
        return [f"{done.public_id} would be overridden: {way}; nothing was changed."]
    told = [f"{done.public_id} was overridden: {way}."]
    told += [f"  now: {one.says}" for one in done.findings]
    runs = [DOCTOR if one.fix else one.todo for one in done.findings]
    return told + [f"  run: {command}" for command in dict.fromkeys(runs) if command]
