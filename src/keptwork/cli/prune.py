"""`keptwork prune`: delete what has been over for long enough, now."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.lifecycle import JOB
from keptwork.service import retention as service


def prune(
    older_than: Annotated[str, typer.Option(metavar="SPAN", help="Only what ended that long ago.")] = "7d",
    states: Annotated[
        str, typer.Option(metavar="STATES", help="Jobs that ended so, and what ended like them.")
    ] = ",".join(service.FINISHED),
    keyed: Annotated[
        bool, typer.Option("--keyed", help="What has an idempotency key too; the key can then make a new one.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Delete jobs, flows, crews, agent jobs and workers that have ended, in small batches beside whatever else is going
    on; their events stay. A flow goes with its steps and all that is inside it, or not at all. Ctrl-C leaves whole
    batches done. Workers do this by themselves every hour, as their application says."""
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
