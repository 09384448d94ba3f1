"""A stretch of the log, counted by the database: which moves there were, and how long what they ended had lasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from keptwork.store.dialect import SQLITE, Dialect
from keptwork.store.event_log import position_of


class MoveCount(NamedTuple):
    """Moves that are alike, and how long their entities had been in the state they left: a bucket, and all together.

    `kind` is a job's, or the name of a breaker; empty for other entities, and none where the job is no longer there.
    What a claim ended is also known as a wait: from when the job was due.
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
    """The moves of a stretch of the log, how many events it has, and the cursor of the last; none if there is none."""

    moves: list[MoveCount]
    events: int
    cursor: str | None


def start(dialect: Dialect, after: str | None) -> dict[str, int]:
    """Where to begin reading, as parameters."""
    if after is None:
        return {"tx": -1, "id": -1}
    numbers = position_of(dialect, after)
    return {"tx": numbers[0], "id": numbers[-1]}


def digest(dialect: Dialect, rows: Sequence[Sequence[Any]]) -> Digest:
    """The rows of the query; its last two columns are the position of the newest event."""
    moves = [MoveCount(*row[:-2]) for row in rows]
    if not moves:
        return Digest([], 0, None)
    tx, id = rows[0][-2:]
    return Digest(moves, sum(move.times for move in moves), str(id) if dialect is SQLITE else f"{tx}-{id}")
