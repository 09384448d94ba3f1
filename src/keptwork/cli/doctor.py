"""`keptwork doctor`: find stuck or inconsistent entities, and repair them by declared moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened, operator, with_tenant
from keptwork.core.ids import public_id
from keptwork.diagnostics import diagnose
from keptwork.diagnostics import overrides as service
from keptwork.diagnostics.doctor import runner
from keptwork.diagnostics.doctor.flow_facts import Limits
from keptwork.diagnostics.why_jobs import as_json as reason_json

if TYPE_CHECKING:
    from keptwork.diagnostics.doctor.finding import Finding
    from keptwork.diagnostics.doctor.runner import Outcome
    from keptwork.diagnostics.overrides import Overridden
    from keptwork.diagnostics.why_jobs import Reason
    from keptwork.store import Store


FOUND = 1


def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Repair findings for which a declared move exists.")] = False,
    stuck_after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[STATE=]SPAN",
            help="Time after which an entity counts as stuck, for all states or one. Default: 1h.",
        ),
    ] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant.")] = None,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Find stuck or inconsistent entities and show how to repair each.

    Exit code 0 if nothing is wrong or everything was repaired, 1 otherwise.
    """
    limits = Limits.said(stuck_after or [])
    outcome, now = asyncio.run(_done(fix, limits, tenant, db))
    screen.emit(runner.as_json(outcome), lambda: "\n".join(_told(outcome, fix, now)), as_json)
    if outcome.left:
        raise typer.Exit(FOUND)


async def _done(fix: bool, limits: Limits, tenant: str | None, db: str | None) -> tuple[Outcome, int]:
    async with opened(db) as store:
        tenant_id = None if tenant is None else await store.tenant(tenant)
        if fix:
            return await runner.treat(store, limits, tenant_id), await store.now()
        found = await runner.examine(store, limits, tenant_id)
        return runner.Outcome(found, [], found), await store.now()


def _told(outcome: Outcome, fix: bool, now: int) -> Iterator[str]:
    for repair in outcome.repairs:
        done = f"could not be mended: {repair.error}" if repair.error else f"mended: {repair.finding.fix}"
        yield f"{repair.finding.public_id}: {repair.finding.says}\n  {done}"
    for one in outcome.left:
        yield _line(one, now)
    if not outcome.found and not outcome.left:
        yield "Nothing is wrong."
    elif fix:
        yield f"Repairs: {len(outcome.repairs)}. Left: {len(outcome.left)}."
    elif any(one.fix for one in outcome.left):
        yield f"Found: {len(outcome.left)}. Mend what declared moves can mend with: keptwork doctor --fix"
    else:
        yield f"Found: {len(outcome.left)}. No declared move mends that; what each needs is said above."


def _line(one: Finding, now: int) -> str:
    since = "" if one.since is None else f", since {screen.moment(one.since)} ({screen.ago(one.since, now)})"
    told = [f"{one.public_id} [{one.check}]: {one.says}{since}", f"  {one.matters}"]
    told += [f"  --fix will: {one.fix}"] if one.fix else []
    told += [f"  needs: {one.todo}"] if one.todo else []
    return "\n".join(line for line in told if line.strip())


# `keptwork why`: show why a job, crew, step, or flow is waiting.


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


# `keptwork override`: an operator's correction of a state that no move can repair.


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
