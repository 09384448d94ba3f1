"""`keptwork prune`: delete entities that finished long enough ago."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.core.lifecycles import JOB
from keptwork.maintenance import retention as service


def prune(
    older_than: Annotated[str, typer.Option(metavar="SPAN", help="Minimum time since the entity finished.")] = "7d",
    states: Annotated[
        str,
        typer.Option(
            metavar="STATES",
            help="Final states of the jobs to delete. Other entities are matched by equivalent states.",
        ),
    ] = ",".join(service.FINISHED),
    keyed: Annotated[
        bool,
        typer.Option("--keyed", help="Include entities with an idempotency key. The key can then create a new one."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the numbers.")] = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Delete finished jobs, flows, crews, agent jobs, and workers in small batches, while other work continues.

    Their events stay. A flow is deleted with its steps and everything inside it, or not at all. After Ctrl-C, deleted
    batches stay deleted. Workers prune automatically every hour, as their application configures.
    """
    chosen = tuple(state for state in states.split(",") if state)

    async def run() -> service.Swept:
        async with opened(db) as store:
            tenant_id = await store.tenant(tenant)
            with screen.progress("Pruning", "rows") as told:
                return await service.prune(
                    store, tenant_id, older_than, chosen, keyed=keyed, dry_run=dry_run, progress=told
                )

    swept = asyncio.run(run())
    rows = {table: dict(counted) for table, counted in swept.by_table.items()}
    counts = {"requests": swept.requests, "telemetry": swept.telemetry, "blobs": swept.blobs, "signals": swept.signals}
    screen.emit({"dry_run": dry_run, **rows, **counts}, lambda: _said(swept, older_than, dry_run), as_json)


def _said(swept: service.Swept, older_than: str, dry_run: bool) -> str:
    parts = [f"{count:,} {state}" for state, count in sorted(swept.jobs.items())]
    others = {table: counted.total() for table, counted in swept.by_table.items() if table != JOB.table}
    parts += [f"{count:,} {table.replace('_', ' ')}" for table, count in others.items() if count]
    if not parts:
        return f"Nothing ended more than {older_than} ago that may go."
    return f"{'Would delete' if dry_run else 'Deleted'}: {', '.join(parts)}."
