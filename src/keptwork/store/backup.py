"""The results of a backup and of a restore, for either database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Backup(NamedTuple):
    """A finished backup: the rows per table, counted in the database and again in the file."""

    rows: Mapping[str, int]


class Restored(NamedTuple):
    """A restored backup: the rows per table, the location of the previous database, and what an operator must still
    do."""

    rows: Mapping[str, int]
    aside: str | None = None
    todo: str = ""


def differences(expected: Mapping[str, int], found: Mapping[str, int]) -> str:
    """Name the tables whose counts differ. Return an empty string if none does.

    >>> differences({"jobs": 1200, "events": 7}, {"jobs": 0, "events": 7})
    'jobs has 0 rows instead of 1,200'
    """
    return ", ".join(
        f"{table} has {found.get(table, 0):,} rows instead of {expected.get(table, 0):,}"
        for table in sorted({*expected, *found})
        if expected.get(table, 0) != found.get(table, 0)
    )
