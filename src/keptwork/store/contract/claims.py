"""Groups changes into batches that one statement each can write."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from keptwork.core.decide import Change

_BY_ID = itemgetter(Change._fields.index("id"))


def batches(changes: Sequence[Change]) -> list[list[Change]]:
    """Return batches with the same move under the same right, and no record twice.

    PostgreSQL locks rows in the order in which a statement names them. Every batch is sorted by ID, so no two callers
    deadlock.
    """
    if _one_run(changes):
        return [sorted(changes, key=_BY_ID)]
    found: list[dict[int, Change]] = []
    for _, run in groupby(changes, key=lambda change: (change.move, change.right)):
        found.append({})
        for change in run:
            if change.id in found[-1]:
                found.append({})
            found[-1][change.id] = change
    return [sorted(batch.values(), key=lambda change: change.id) for batch in found]


def _one_run(changes: Sequence[Change]) -> bool:
    """Return whether all changes have the same move and right. This is usual, and needs no grouping."""
    if not changes:
        return False
    move, right = changes[0].move, changes[0].right
    alike = all(change.move is move and change.right is right for change in changes)
    return alike and len(set(map(_BY_ID, changes))) == len(changes)
