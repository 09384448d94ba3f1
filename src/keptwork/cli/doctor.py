"""`keptwork doctor`: find stuck or inconsistent entities, and repair them by declared moves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import Db, opened
from keptwork.diagnostics.doctor import runner
from keptwork.diagnostics.doctor.flow_facts import Limits

if TYPE_CHECKING:
    from keptwork.diagnostics.doctor.finding import Finding
    from keptwork.diagnostics.doctor.runner import Outcome

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
