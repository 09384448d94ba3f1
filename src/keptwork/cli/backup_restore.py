"""`keptwork restore`: put a backup in place of a database."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from keptwork.cli import screen
from keptwork.cli.backup import counted
from keptwork.cli.database import Db
from keptwork.maintenance import backups
from keptwork.store.backup import Restored
from keptwork.store.url import database_url


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
