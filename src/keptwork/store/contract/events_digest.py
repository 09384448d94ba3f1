"""A section of the log, counted by the database: the moves, and how long each previous state had lasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.store.contract.events import position_of
from keptwork.store.dialect import SQLITE, Dialect


class MoveCount(NamedTuple):
    """A group of equal moves, with the time that their entities had spent in the state they left, as a bucket and in
    total.

    `kind` is the job's kind or the breaker's name. It is empty for other entities, and None if the job no longer
    exists. For a claim, `waited` is the time since the job was due.
    """

    tenant_id: int
    entity: str
    kind: str | None
    trigger: str
    from_state: str | None
    to_state: str
    reason: str | None
    lasted: int | None
    waited: int | None
    times: int
    lasted_us: int
    waited_us: int


class Digest(NamedTuple):
    """The moves of a section of the log, the number of its events, and the cursor of the last event or None."""

    moves: list[MoveCount]
    events: int
    cursor: str | None


def start(dialect: Dialect, after: str | None) -> dict[str, int]:
    """Return the start position as statement parameters."""
    if after is None:
        return {"tx": -1, "id": -1}
    numbers = position_of(dialect, after)
    return {"tx": numbers[0], "id": numbers[-1]}


def digest(dialect: Dialect, rows: Sequence[Sequence[Any]]) -> Digest:
    """Return the digest for the rows of the query. The last two columns are the position of the newest event."""
    moves = [MoveCount(*row[:-2]) for row in rows]
    if not moves:
        return Digest([], 0, None)
    tx, id = rows[0][-2:]
    return Digest(moves, sum(move.times for move in moves), str(id) if dialect is SQLITE else f"{tx}-{id}")
