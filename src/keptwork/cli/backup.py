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
