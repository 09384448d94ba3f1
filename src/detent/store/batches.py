"""Which changes one statement can write."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from detent.lifecycle.machine import Change


def batches(changes: Sequence[Change]) -> list[list[Change]]:
    """Runs of the same move by the same right, no record twice.

    PostgreSQL locks rows in the order they are named, so everyone names them in the same order and nobody waits in a
    circle.
    """
    found: list[dict[int, Change]] = []
    for _, run in groupby(changes, key=lambda change: (change.move, change.right)):
        found.append({})
        for change in run:
            if change.id in found[-1]:
                found.append({})
            found[-1][change.id] = change
    return [sorted(batch.values(), key=lambda change: change.id) for batch in found]
