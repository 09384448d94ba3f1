"""`detent prune`: delete what has been over for long enough, now."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from detent.cli import screen
from detent.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from detent.service import retention as service


def prune(
    older_than: Annotated[str, typer.Option(metavar="SPAN", help="Only what ended that long ago.")] = "7d",
    states: Annotated[str, typer.Option(metavar="STATES", help="Jobs that ended so, with commas.")] = ",".join(
        service.FINISHED
    ),
    keyed: Annotated[
        bool, typer.Option("--keyed", help="Jobs with an idempotency key too; the key can then make a new job.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many.")] = False,
    tenant: Tenant = DEFAULT_TENANT_NAME,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Delete jobs and workers that have ended, in small batches beside whatever else is going on; their events stay.
    Ctrl-C leaves whole batches done. Workers do this by themselves every hour, as their application says."""
    chosen = tuple(state for state in states.split(",") if state)

    async def run() -> service.Swept:
        async with opened(db) as store:
            tenant_id = await store.tenant(tenant)
            with screen.progress("Pruning", "rows") as told:
                return await service.prune(
                    store, tenant_id, older_than, chosen, keyed=keyed, dry_run=dry_run, progress=told
                )

    swept = asyncio.run(run())
    rows = {"jobs": dict(swept.jobs), "workers": dict(swept.workers)}
    counts = {**rows, "requests": swept.requests, "telemetry": swept.telemetry, "blobs": swept.blobs}
    counts["signals"] = swept.signals
    screen.emit({"dry_run": dry_run, **counts}, lambda: _said(swept, older_than, dry_run), as_json)


def _said(swept: service.Swept, older_than: str, dry_run: bool) -> str:
    parts = [f"{count:,} {state}" for state, count in sorted(swept.jobs.items())]
    parts += [f"{swept.workers.total():,} workers"] if swept.workers else []
    if not parts:
        return f"Nothing ended more than {older_than} ago that may go."
    return f"{'Would delete' if dry_run else 'Deleted'}: {', '.join(parts)}."
