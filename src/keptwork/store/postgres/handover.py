"""Builds the PostgreSQL statement that hands a flow over from one step to the next."""

# ruff: noqa: S608 - only declared words and the project's own files are put together here, never a user's input.

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from string import ascii_lowercase
from typing import Any

from keptwork.core.decide import Change
from keptwork.store.postgres.batches import GIVEN, LOGGED, TYPES
from keptwork.store.postgres.handover_unmoved import Unmoved
from keptwork.store.trigger_rules import literal

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_RETURNED = ("id", "updated_at", "seq", "epoch", "correlation_id", "trace_id")


def words(moves: Sequence[tuple[Change, str, Sequence[str]]], unmoved: Sequence[Unmoved]) -> dict[str, str]:
    """Return the words for the text of the statement. Each move has an UPDATE, and each row that must not change has a
    check."""
    looks = dict(zip(ascii_lowercase, unmoved, strict=False))
    writes = dict(zip(ascii_lowercase, moves, strict=False))
    found = [f"look_{letter}" for letter in looks] + [f"moved_{letter}" for letter in writes]
    return {
        "unmoved": "".join(_look(letter, row) for letter, row in looks.items()),
        "moved": "".join(_move(letter, *move) for letter, move in writes.items()),
        "moved_events": "".join(_event(letter, *move) for letter, move in writes.items()),
        "all_found": "".join(f" AND EXISTS (SELECT 1 FROM {name})" for name in found),
    }


def values(moves: Sequence[tuple[Change, dict[str, Any]]], unmoved: Sequence[Unmoved]) -> Iterator[tuple[str, Any]]:
    """Yield the parameters of the moves and the checks, by name."""
    for letter, (_, given) in zip(ascii_lowercase, moves, strict=False):
        yield from ((f"{letter}_{name}", value) for name, value in given.items())
    for letter, row in zip(ascii_lowercase, unmoved, strict=False):
        yield from ((f"look_{letter}_id", row.id), (f"look_{letter}_seq", row.seq))


def _look(letter: str, row: Unmoved) -> str:
    """Return the check of a row. It depends on `clock`, so that it waits for a row only after the lock on the tree is
    held."""
    free = " AND held_at IS NULL" if row.is_flow else ""
    return (
        f"look_{letter} AS MATERIALIZED (SELECT 1 FROM {row.table} WHERE id = :look_{letter}_id::bigint AND "
        f"seq = :look_{letter}_seq::int{free} AND EXISTS (SELECT 1 FROM clock) FOR SHARE),\n"
    )


def _move(letter: str, change: Change, update: str, names: Sequence[str]) -> str:
    given = ", ".join(f"{_place(letter, name)} AS {name}" for name in names)
    moved = _PARAMETER.sub(r"g.\1", update).replace(GIVEN, f"(SELECT {given}, now FROM clock OFFSET 0) AS g")
    returned = ", ".join(f"{change.lifecycle.table}.{name}" for name in _RETURNED)
    return f"moved_{letter} AS ({moved} RETURNING {returned}),\n"


def _event(letter: str, change: Change, _: str, names: Sequence[str]) -> str:
    facts = {name: _place(letter, name) for name in LOGGED}
    return (
        f"SELECT (SELECT tx FROM clock), m.id, m.updated_at, {facts['tenant_id']}, m.seq, m.epoch, "
        f"{literal(change.lifecycle.name)}, {literal(change.move.event)}, {literal(change.move.trigger)}, "
        f"{facts['from_state']}, {literal(change.move.target.name)}, {facts['actor']}, m.correlation_id, m.trace_id, "
        f"{facts['cause']}, {facts['reason']}, {facts['detail']} FROM moved_{letter} AS m\n    UNION ALL "
    )


def _place(letter: str, name: str) -> str:
    return f":{letter}_{name}::{TYPES.get(name, 'text')}"
