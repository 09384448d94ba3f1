"""What a backup is, whichever database it is of: a file, and how many rows of each table are in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Backup(NamedTuple):
    """A backup that was taken: rows by table, as counted in the database and again in the file."""

    rows: Mapping[str, int]


class Restored(NamedTuple):
    """A backup that was put in place: rows by table, where the database that was there before is now, and what is left
    to do for an operator."""

    rows: Mapping[str, int]
    aside: str | None = None
    todo: str = ""


def differences(expected: Mapping[str, int], found: Mapping[str, int]) -> str:
    """Name the tables whose counts differ; empty if none does.

    >>> differences({"jobs": 1200, "events": 7}, {"jobs": 0, "events": 7})
    'jobs has 0 rows instead of 1,200'
    """
    return ", ".join(
        f"{table} has {found.get(table, 0):,} rows instead of {expected.get(table, 0):,}"
        for table in sorted({*expected, *found})
        if expected.get(table, 0) != found.get(table, 0)
    )
