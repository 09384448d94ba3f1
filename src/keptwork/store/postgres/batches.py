"""Builds statements that write many records and their events on PostgreSQL.

Values that all records of a batch share are passed once. Values that differ are passed as arrays, with one item for
each record. The columns that differ are the statement's shape. Only a few shapes are used, so that their plans are
cached. A single record needs no arrays.
"""

# ruff: noqa: S608 - only declared words and the project's own files are put together here, never a user's input.

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from keptwork.core.decide import Lifecycle, Move
from keptwork.store.contract.records import NewJob
from keptwork.store.trigger_rules import EVENT_COLUMNS, literal, literals

Columns = Mapping[str, Sequence[Any]]
"""The values of a batch by name, one for each record."""

CLOCK = "WITH clock AS MATERIALIZED (SELECT keptwork_now() AS now, keptwork_tx() AS tx)"
NOW, TX = "(SELECT now FROM clock)", "(SELECT tx FROM clock)"
GIVEN = "{given}"
"""The place of the batch in a statement."""

# Columns that are not listed are text.
TYPES = {
    "id": "bigint",
    "tenant_id": "int",
    "seq": "int",
    "epoch": "int",
    "owner": "bigint",
    "detail": "json",
    "result": "json",
    "delay_us": "bigint",
    "run_at": "bigint",
    "priority": "int",
    "max_attempts": "int",
    "redriven_from": "bigint",
    "parent_id": "bigint",
    "step_id": "bigint",
    "crew_id": "bigint",
    "tree_id": "bigint",
    "output": "json",
    "cost_micros": "bigint",
    "wake_at": "bigint",
    "failures": "int",
    "probe_job": "bigint",
    "probe_epoch": "int",
    "job_seq": "int",
    "payload": "json",
    "job_id": "bigint",
    "ago_us": "bigint",
    "took_us": "bigint",
}

TOOK = "took_us"
"""The time that a record spent in the state between the two moves of a pair."""

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
LOGGED = ("tenant_id", "from_state", "actor", "cause", "reason", "detail")
_EVENT_COLUMNS = f"tx, {EVENT_COLUMNS}"


class BatchStatement(NamedTuple):
    """SQL for a batch. The parameters that are passed once come first, then the arrays."""

    sql: str
    once: tuple[str, ...]
    each: tuple[str, ...]

    def values(self, columns: Columns) -> list[Any]:
        """Return the parameters in binding order."""
        return [columns[name][0] for name in self.once] + [columns[name] for name in self.each]


def shape(columns: Columns, usual: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the first usual shape that fits these values. Otherwise, everything is passed as arrays."""
    for each in usual:
        if all(name in each or column.count(column[0]) == len(column) for name, column in columns.items()):
            return tuple(name for name in each if name in columns)
    return tuple(columns)


# The columns that differ between the records of nearly every batch.
ENQUEUE_SHAPES = (("id", "payload"), ("id", "payload", "key"))
DIFFERING = ("id", "seq", "epoch")


def enqueue_statement(text: str, each: Sequence[str]) -> BatchStatement:
    """Return the statement that enqueues. `text` names its values as parameters and the batch as {given}. A single job
    uses only parameters."""
    batch = _Batch(("id", *NewJob._fields, "ring"), each)
    sql = _PARAMETER.sub(lambda match: f"g.{match[1]}" if match[1] in each else batch.places[match[1]], text)
    given = f"{batch.arrays} AS g({', '.join(each)})" if each else "(SELECT) AS g"
    return BatchStatement(sql.replace(GIVEN, given), batch.once, batch.each)


def move_statement(
    lifecycle: Lifecycle, move: Move, update: str, names: Sequence[str], each: Sequence[str]
) -> BatchStatement:
    """Return one statement for many moves of one kind, which also writes their events."""
    batch, t = _Batch(names, each), lifecycle.table
    facts = {name: f"m.{name}" if name in each else batch.places[name] for name in LOGGED}
    returned = [f"{t}.{name}" for name in ("id", "updated_at", "seq", "epoch", "correlation_id", "trace_id")]
    returned += [f"g.{name}" for name in LOGGED if name in each]
    if move.first is not None:
        returned += [f"{t}.started_at", f"g.{TOOK}"]
    moved = _PARAMETER.sub(r"g.\1", update).replace(GIVEN, batch.fenced)
    events = _event(lifecycle, move, facts) if move.first is None else _events(lifecycle, move.first, move, facts)
    sql = (
        f"{CLOCK},\nmoved AS ({moved}\nRETURNING {', '.join(returned)}),\n"
        f"logged AS (INSERT INTO events ({_EVENT_COLUMNS})\n{events})\nSELECT id FROM moved"
    )
    return BatchStatement(sql, batch.once, batch.each)


def _event(lifecycle: Lifecycle, move: Move, facts: Mapping[str, str]) -> str:
    return (
        f"SELECT {TX}, m.id, m.updated_at, {facts['tenant_id']}, m.seq, m.epoch, {literal(lifecycle.name)}, "
        f"{literal(move.event)}, {literal(move.trigger)}, {facts['from_state']}, {literal(move.target.name)}, "
        f"{facts['actor']}, m.correlation_id, m.trace_id, {facts['cause']}, {facts['reason']}, {facts['detail']} "
        f"FROM moved AS m"
    )


def _events(lifecycle: Lifecycle, first: Move, second: Move, facts: Mapping[str, str]) -> str:
    """Return the SELECT of the events of pairs, record by record. An event that comes later in the log also started
    later. The row has the time of the first move, unless the record had been in that state before."""
    began = f"CASE m.started_at WHEN m.updated_at - m.{TOOK} THEN m.started_at ELSE m.updated_at - 1 END"
    between = literal(first.target.name)
    ways = (
        f"(1, {literals((first.event, first.trigger))}, NULL, {between})",
        f"(2, {literals((second.event, second.trigger))}, {between}, {literal(second.target.name)})",
    )
    told = [f"CASE e.place WHEN 2 THEN {facts[name]} END" for name in ("cause", "reason", "detail")]
    return (
        f"SELECT {TX}, m.id, CASE e.place WHEN 1 THEN {began} ELSE m.updated_at END, {facts['tenant_id']}, "
        f"m.seq - 2 + e.place, m.epoch, {literal(lifecycle.name)}, e.type, e.trigger, "
        f"coalesce(e.from_state, {facts['from_state']}), e.to_state, {facts['actor']}, m.correlation_id, m.trace_id, "
        f"{', '.join(told)} FROM moved AS m, "
        f"(VALUES {', '.join(ways)}) AS e(place, type, trigger, from_state, to_state) ORDER BY m.id, e.place"
    )


def birth_sql(insert: str, lifecycle: Lifecycle) -> str:
    """Return the INSERT of one entity with its first event."""
    typed = re.sub(r":(id|detail|tenant_id)\b", lambda m: f":{m[1]}::{TYPES[m[1]]}", insert)
    creation = lifecycle.creation
    return (
        f"{CLOCK}, born AS ({typed} ON CONFLICT (id) DO NOTHING RETURNING *) INSERT INTO events ({_EVENT_COLUMNS}) "
        f"SELECT {TX}, b.id, b.created_at, b.tenant_id, b.seq, b.epoch, {literal(lifecycle.name)}, "
        f"{literal(creation.event)}, b.move, NULL, b.state, b.actor, b.correlation_id, b.trace_id, b.cause, b.reason, "
        f"b.detail FROM born AS b"
    )


class _Batch:
    """The places of a batch's values in a statement."""

    def __init__(self, names: Sequence[str], each: Sequence[str]) -> None:
        self.once = tuple(name for name in names if name not in each)
        self.each = tuple(each)
        order = enumerate((*self.once, *self.each), 1)
        self.places = {name: f"${place}::{TYPES.get(name, 'text')}" for place, name in order}

    @property
    def arrays(self) -> str:
        return f"unnest({', '.join(f'{self.places[name]}[]' for name in self.each)})"

    @property
    def fenced(self) -> str:
        """The whole batch as rows, with the time. OFFSET 0 hides the content from the planner. Otherwise, the planner
        would search the table for the values that all records share instead of using the primary key."""
        common = "".join(f"{self.places[name]} AS {name}, " for name in self.once)
        if not self.each:
            return f"(SELECT {common}{NOW} AS now OFFSET 0) AS g"
        return f"(SELECT a.*, {common}{NOW} AS now FROM {self.arrays} AS a({', '.join(self.each)}) OFFSET 0) AS g"
