"""`keptwork migrate`: create a database, or bring it up to date."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import DEFAULT_TENANT_NAME, Db, Tenant, opened
from keptwork.core.lifecycles import JOB
from keptwork.errors import BadInput
from keptwork.maintenance import retention
from keptwork.store import upgrade_migrate
from keptwork.store.upgrade_migrate import Migrated


def migrate(
    db: Db = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; list what would be applied.")] = False,
    sql: Annotated[bool, typer.Option("--sql", help="Change nothing; print the SQL that would be run.")] = False,
    guards: Annotated[
        bool, typer.Option("--guards", help="Restore guards, and the policies and grants of the owner on PostgreSQL.")
    ] = False,
    as_json: screen.Json = False,
) -> None:
    """Create the database if it does not exist, and apply all missing migrations.

    On PostgreSQL a migration waits for locks for a fraction of a second at a time, so that other programs keep working,
    and names the session it waits for. After Ctrl-C or SIGTERM, run the command again to continue.
    """
    looks_only = dry_run or sql
    if looks_only and guards:
        raise BadInput(what="--guards changes the database; leave out --dry-run and --sql")
    found = asyncio.run(upgrade_migrate.dry_run(db)) if looks_only else migrated(db, guards=guards)
    human = (lambda: _script(found)) if sql else (lambda: _report(found, looks_only))
    screen.emit(_as_json(found, looks_only), human, as_json)


def migrated(url: str | None, *, guards: bool = False) -> Migrated:
    """Bring a database up to date, and report lock waits on stderr. SIGTERM interrupts it like Ctrl-C."""

    async def run() -> Migrated:
        migrating = asyncio.current_task()
        assert migrating is not None  # noqa: S101 - this is a coroutine of asyncio.run
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, migrating.cancel)
        return await upgrade_migrate.migrate(url, guards=guards, tell=lambda line: screen.complain(f"keptwork: {line}"))

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _as_json(found: Migrated, with_sql: bool) -> dict[str, object]:
    key = "pending" if with_sql else "applied"
    entries = [{"number": migration.number, "name": migration.name} for migration in found.migrations]
    if with_sql:
        entries = [{**entry, "sql": list(m.statements)} for entry, m in zip(entries, found.migrations, strict=True)]
    return {"database": found.url, key: entries, **({"guards": [*found.guards]} if found.guards else {})}


def _report(found: Migrated, looks_only: bool) -> str:
    if found.guards:
        return "\n".join(
            [_report(found._replace(guards=()), looks_only), *(f"Put back: {one}" for one in found.guards)]
        )
    if not found.migrations:
        return f"{found.url} is up to date."
    title = f"{found.url} lacks:" if looks_only else f"{found.url} is up to date. Applied:"
    lines = (f"  {migration.number:04} {migration.name}" for migration in found.migrations)
    hint = (
        ["Nothing was changed. --sql prints the statements; the same command without --dry-run runs them."]
        if looks_only
        else []
    )
    return "\n".join([title, *lines, *hint])


def _script(found: Migrated) -> str:
    parts = (
        f"-- {migration.number:04} {migration.name}\n" + "".join(f"{s};\n" for s in migration.statements)
        for migration in found.migrations
    )
    return "\n".join(parts).rstrip() or f"-- {found.url} is up to date"


# `keptwork prune`: delete entities that finished long enough ago.


def prune(
    older_than: Annotated[str, typer.Option(metavar="SPAN", help="Minimum time since the entity finished.")] = "7d",
    states: Annotated[
        str,
        typer.Option(
            metavar="STATES",
            help="Final states of the jobs to delete. Other entities are matched by equivalent states.",
        ),
    ] = ",".join(retention.FINISHED),
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

    async def run() -> retention.Swept:
        async with opened(db) as store:
            tenant_id = await store.tenant(tenant)
            with screen.progress("Pruning", "rows") as told:
                return await retention.prune(
                    store, tenant_id, older_than, chosen, keyed=keyed, dry_run=dry_run, progress=told
                )

    swept = asyncio.run(run())
    rows = {table: dict(counted) for table, counted in swept.by_table.items()}
    counts = {"requests": swept.requests, "telemetry": swept.telemetry, "blobs": swept.blobs, "signals": swept.signals}
    screen.emit({"dry_run": dry_run, **rows, **counts}, lambda: _said(swept, older_than, dry_run), as_json)


def _said(swept: retention.Swept, older_than: str, dry_run: bool) -> str:
    parts = [f"{count:,} {state}" for state, count in sorted(swept.jobs.items())]
    others = {table: counted.total() for table, counted in swept.by_table.items() if table != JOB.table}
    parts += [f"{count:,} {table.replace('_', ' ')}" for table, count in others.items() if count]
    if not parts:
        return f"Nothing ended more than {older_than} ago that may go."
    return f"{'Would delete' if dry_run else 'Deleted'}: {', '.join(parts)}."
