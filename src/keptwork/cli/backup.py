"""`keptwork backup`: write a verified copy of a database to a file."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.database import Db
from keptwork.maintenance import backups
from keptwork.store.backup import Restored
from keptwork.store.url import database_url


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the backup.")],
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Write the database, as of one moment, into a new file, and compare the file with the database. Workers continue
    meanwhile. PostgreSQL needs pg_dump and pg_restore on this machine."""
    taken = asyncio.run(backups.back_up(db, file))
    size = file.stat().st_size
    value = {"file": str(file), "bytes": size, "rows": dict(taken.rows)}
    screen.emit(value, lambda: f"{file} ({screen.size(size)}) holds {counted(taken.rows)}.", as_json)


def counted(rows: Mapping[str, int]) -> str:
    """Return how many rows of the best-known tables there are, and of how many tables in all.

    >>> counted({"public.jobs": 1200, "public.events": 1, "orders": 3})
    '1,200 jobs, 1 events, and 3 rows of other tables; every count agrees'
    """
    known = {name.rpartition(".")[2]: count for name, count in rows.items()}
    others = sum(count for name, count in known.items() if name not in ("jobs", "events"))
    jobs, events = known.get("jobs", 0), known.get("events", 0)
    return f"{jobs:,} jobs, {events:,} events, and {others:,} rows of other tables; every count agrees"


# `keptwork restore`: put a backup in place of a database.


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup by: keptwork backup FILE.")],
    paused: Annotated[
        bool, typer.Option("--paused", help="Pause every queue and schedule of the restored copy.")
    ] = False,
    db: Db = None,
    as_json: screen.Json = False,
) -> None:
    """Check a backup, put it in place of the database, and compare both. SQLite: no process may have the database
    open; the old file is set aside with its log. PostgreSQL: the database must have no Keptwork tables yet."""
    restored = asyncio.run(backups.restore(db, file, paused=paused))
    shown = database_url(db).shown
    value = {
        "database": shown,
        "file": str(file),
        "rows": dict(restored.rows),
        "aside": restored.aside,
        "paused": paused,
        "todo": restored.todo,
    }
    screen.emit(value, lambda: _told(restored, shown, file, paused), as_json)


def _told(restored: Restored, shown: str, file: Path, paused: bool) -> str:
    lines = [f"{shown} is restored from {file}: {counted(restored.rows)}."]
    if restored.aside:
        lines.append(f"The old database was set aside: {restored.aside}")
    if restored.todo:
        lines.append(restored.todo)
    if paused:
        lines.append("Every queue and schedule is paused. Resume a queue with: keptwork queues resume NAME")
    return "\n".join(lines)
