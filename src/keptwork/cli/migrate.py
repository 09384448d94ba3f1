"""`keptwork migrate`: create a database, or bring it up to date."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import Db
from keptwork.errors import BadInput
from keptwork.store import upgrade_migrate as service
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
    found = asyncio.run(service.dry_run(db)) if looks_only else migrated(db, guards=guards)
    human = (lambda: _script(found)) if sql else (lambda: _report(found, looks_only))
    screen.emit(_as_json(found, looks_only), human, as_json)


def migrated(url: str | None, *, guards: bool = False) -> Migrated:
    """Bring a database up to date, and report lock waits on stderr. SIGTERM interrupts it like Ctrl-C."""

    async def run() -> Migrated:
        migrating = asyncio.current_task()
        assert migrating is not None  # noqa: S101 - this is a coroutine of asyncio.run
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, migrating.cancel)
        return await service.migrate(url, guards=guards, tell=lambda line: screen.complain(f"keptwork: {line}"))

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
