"""Queries for the log: filters, order, and cursors.

On SQLite, the ID is the commit order, because there is one writer at a time. On PostgreSQL, a lower ID might commit
later. There, the order is (tx, id), and a reader stops before the oldest open transaction, so that it never skips an
event that is about to appear.
"""

# ruff: noqa: S608 - the conditions are fixed texts chosen by name; every value is a parameter.

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from keptwork.errors import BadInput
from keptwork.store.contract.records import EVENT_FIELDS, Event, EventFilter
from keptwork.store.dialect import SQLITE, Dialect

_FIELDS = ", ".join(EVENT_FIELDS)
_CURSOR = re.compile(r"[0-9]{1,19}(-[0-9]{1,19})?")

_CONDITIONS = {
    "tenant_id": "tenant_id = {}",
    "entity": "entity = {}",
    "entity_id": "entity_id = {}",
    "type": "type = {}",
    "correlation_id": "correlation_id = {}",
    "since": "ts >= {}",
    "until": "ts < {}",
}


def page(
    dialect: Dialect, wanted: EventFilter, after: str | None, limit: int, newest_first: bool
) -> tuple[str, list[Any]]:
    """Return the query for one page of events and its values. Oldest first, a page ends where reading on is safe."""
    values: list[Any] = []

    def bound(value: Any) -> str:
        values.append(value)
        return f"?{len(values)}" if dialect is SQLITE else f"${len(values)}"

    chosen = {name: getattr(wanted, name) for name in _CONDITIONS if getattr(wanted, name) is not None}
    conditions = [_CONDITIONS[name].format(bound(value)) for name, value in chosen.items()]
    position = ["id"] if dialect is SQLITE else ["tx", "id"]
    if after is not None:
        places = ", ".join(bound(number) for number in position_of(dialect, after))
        conditions.append(f"({', '.join(position)}) {'<' if newest_first else '>'} ({places})")
    if dialect is not SQLITE and not newest_first:
        conditions.append("tx < keptwork_tx_horizon()")
    order = ", ".join(f"{column} {'DESC' if newest_first else 'ASC'}" for column in position)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    tx = "0" if dialect is SQLITE else "tx"
    return f"SELECT {_FIELDS}, {tx} FROM events {where}ORDER BY {order} LIMIT {bound(limit)}", values


def history(dialect: Dialect, after: tuple[int, int] | tuple[int, int, str], limit: int) -> tuple[str, list[Any]]:
    """Return the query for events by entity, each entity's in their own order, for an audit to replay.

    Rows inserted manually can give two kinds of entity the same ID, so the full order is (entity_id, seq, entity).
    """
    mark, tx = ("?", "0") if dialect is SQLITE else ("$", "tx")
    columns = ("entity_id", "seq", "entity")
    marks = ", ".join(f"{mark}{place}" for place in range(1, len(after) + 1))
    return (
        f"SELECT {_FIELDS}, {tx} FROM events WHERE ({', '.join(columns[: len(after)])}) > ({marks}) "
        f"ORDER BY {', '.join(columns)} LIMIT {mark}{len(after) + 1}",
        [*after, limit],
    )


def event(dialect: Dialect, row: Sequence[Any]) -> Event:
    """Return a row of either query as an event."""
    id, tx = row[0], row[-1]
    return Event._make((*row[:-1], str(id) if dialect is SQLITE else f"{tx}-{id}"))


def position_of(dialect: Dialect, cursor: str) -> list[int]:
    """Return the numbers in a cursor. A cursor with another form raises `BadInput`."""
    numbers = [int(part) for part in cursor.split("-")] if _CURSOR.fullmatch(cursor) else []
    if len(numbers) != (1 if dialect is SQLITE else 2) or max(numbers) >= 1 << 63:
        raise BadInput(what=f"{cursor!r} is no event cursor of this database; take one from an earlier answer")
    return numbers
