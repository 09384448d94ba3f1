"""Loads the SQL files and prepares statements for a database: words filled in, parameters numbered.

A statement starts with `-- name: NAME` and a line of intent. `:name` is a parameter, and `{NAME}` is an entry of
`parts.sql`. The statements that write a move are generated from the declaration and `moves.sql`, one for each move and
right.
"""

# ruff: noqa: S608 - only declared words and the project's own files are put together here, never a user's input.

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

from keptwork.core.decide import Change, Lifecycle, Move, Right
from keptwork.core.lifecycles import LIFECYCLES, RUN, WORKSTREAM
from keptwork.core.lifecycles.job import JOB
from keptwork.core.metrics import bucket_sql
from keptwork.store.contract.access import API_KEY_COLUMNS
from keptwork.store.contract.agents import AUDIT_COLUMNS
from keptwork.store.contract.agents_transcripts import LINE_COLUMNS
from keptwork.store.contract.breakers import BREAKER_COLUMNS
from keptwork.store.contract.budgets import BUCKET_COLUMNS, BUDGET_COLUMNS, CHARGE_COLUMNS, LOST, OPEN, RELEASED
from keptwork.store.contract.checkpoints import CHECKPOINT_COLUMNS
from keptwork.store.contract.events_seals import SEAL_COLUMNS
from keptwork.store.contract.flows_steps import STEP_COLUMNS
from keptwork.store.contract.flows_templates import TEMPLATE_COLUMNS
from keptwork.store.contract.outbox import OUTBOX_COLUMNS, PENDING
from keptwork.store.contract.queues import SCHEDULE_COLUMNS, SCHEDULER
from keptwork.store.contract.records import AMENDABLE, ENTITY_COLUMNS, JOB_COLUMNS
from keptwork.store.contract.waits import ALL_CHILDREN, ANY_CHILD, APPROVAL, EVENT
from keptwork.store.contract.waits_approvals import APPROVAL_COLUMNS
from keptwork.store.dialect import SQLITE, Dialect, declared, fill
from keptwork.store.postgres.batches import (
    DIFFERING,
    GIVEN,
    NOW,
    TOOK,
    BatchStatement,
    birth_sql,
    enqueue_statement,
    move_statement,
)
from keptwork.store.postgres.handover import words as handover_words
from keptwork.store.postgres.handover_unmoved import Unmoved
from keptwork.store.trigger_rules import literal, literals

_HEAD = re.compile(r"^-- name: (\S+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")

# The condition that no artifact, result, checkpoint, step, crew, or transcript refers to a blob.
_UNUSED = (
    "NOT EXISTS (SELECT 1 FROM artifacts AS a WHERE a.tenant_id = blobs.tenant_id AND a.hash = blobs.hash) AND "
    "NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.tenant_id = blobs.tenant_id AND j.result_hash = blobs.hash) AND "
    "NOT EXISTS (SELECT 1 FROM checkpoints AS c WHERE c.tenant_id = blobs.tenant_id AND c.hash = blobs.hash) AND "
    "NOT EXISTS (SELECT 1 FROM steps AS s WHERE s.tenant_id = blobs.tenant_id AND s.output_hash = blobs.hash) AND "
    "NOT EXISTS (SELECT 1 FROM crews AS w WHERE w.tenant_id = blobs.tenant_id AND w.result_hash = blobs.hash) AND "
    "NOT EXISTS (SELECT 1 FROM transcripts AS t WHERE t.tenant_id = blobs.tenant_id AND t.hash = blobs.hash)"
)

# One text gives two statements: a claim, and a claim that also starts the jobs in the same write.
CLAIMS = {"claim": ("claim",), "claim_and_start": ("claim", "start")}


# A condition that a claim on SQLite adds if it leaves some kinds to other workers. Usually it leaves none.
KNOWN = "_known"
_LEFT_TO_OTHERS = "AND kind NOT IN (SELECT value FROM json_each(:without))"

# Parts that an enqueue on PostgreSQL adds if jobs have limits: they record when limits must be checked.
_ALSO_BORN = ", run_at, limit_key"
_WOKEN = """woken AS (INSERT INTO limit_wakes (at, tenant_id, key)
    SELECT DISTINCT run_at, CASE WHEN limit_key LIKE '*:%' THEN 0 ELSE tenant_id END, limit_key
    FROM born WHERE limit_key IS NOT NULL),
"""

# The files of the statements that both databases share.
_FILES = (
    "shared",
    "flows",
    "outbox",
    "breakers",
    "crews",
    "agents",
    "budgets",
    "transcripts",
    "keys",
    "seals",
    "retention",
    "waits",
)

# One text gives a statement for each kind of flow: `listed_runs` is `listed` with {flows} as runs.
_FLOWS = (RUN.table, WORKSTREAM.table)

_WORDS = {
    "given": GIVEN,
    "unused": _UNUSED,
    "all_children": literal(ALL_CHILDREN),
    "any_child": literal(ANY_CHILD),
    "an_event": literal(EVENT),
    "an_approval": literal(APPROVAL),
    "approval_columns": ", ".join(APPROVAL_COLUMNS),
    "checkpoint_columns": ", ".join(CHECKPOINT_COLUMNS),
    "schedule_columns": ", ".join(SCHEDULE_COLUMNS),
    "scheduler": literal(SCHEDULER),
    "template_columns": ", ".join(TEMPLATE_COLUMNS),
    "outbox_columns": ", ".join(OUTBOX_COLUMNS),
    "pending": literal(PENDING),
    "step_columns": ", ".join(STEP_COLUMNS),
    "api_key_columns": ", ".join(API_KEY_COLUMNS),
    "seal_columns": ", ".join(SEAL_COLUMNS),
    "audit_columns": ", ".join(AUDIT_COLUMNS),
    "breaker_columns": ", ".join(BREAKER_COLUMNS),
    "budget_columns": ", ".join(BUDGET_COLUMNS),
    "charge_columns": ", ".join(CHARGE_COLUMNS),
    "charge_open": literal(OPEN),
    "charge_lost": literal(LOST),
    "charge_released": literal(RELEASED),
    "bucket_columns": ", ".join(BUCKET_COLUMNS),
    "line_columns": ", ".join(LINE_COLUMNS),
    "job_columns": ", ".join(JOB_COLUMNS),
    "jobs_columns": ", ".join(f"jobs.{column}" for column in JOB_COLUMNS),
    "notes": literals(note.trigger for lifecycle in LIFECYCLES.values() for note in lifecycle.notes),
    "lasted_bucket": bucket_sql("lasted"),
    "waited_bucket": bucket_sql("waited"),
}


class Statement(NamedTuple):
    """SQL that is ready to run, with the names of its parameters in binding order."""

    sql: str
    parameters: tuple[str, ...]


class MoveStatement(NamedTuple):
    """The UPDATE of a move. It takes some fields of a change, then some of its values. `batch` and `shaped` put them in
    their places."""

    sql: str
    fields: Callable[[Change], tuple[object, ...]]
    names: tuple[str, ...]
    extras: tuple[str, ...]


class MoveBatch(NamedTuple):
    """A SQLite statement that writes a batch of moves. Its parameters are an array with the fields and values of `each`
    move, the time, and the fields that all moves share, taken `once` from the first move."""

    sql: str
    each: Callable[[Change], tuple[object, ...]]
    once: Callable[[Change], tuple[object, ...]]
    extras: tuple[str, ...]


class Catalogue:
    """Every statement of one database."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._sqlite = dialect is SQLITE
        shared = [_read(f"{name}.sql") for name in (*_FILES, dialect.name)]
        self._raw = {name: text for file in shared for name, text in file.items()}
        self._raw_moves = _read("moves.sql")
        self._parts = _read("parts.sql")
        self._statements: dict[str, Statement] = {}
        self._moves: dict[tuple[Move, Right | None], MoveStatement] = {}
        self._batches: dict[tuple[Move, Right | None, bool], MoveBatch] = {}
        self._shaped: dict[tuple[Any, tuple[str, ...]], BatchStatement] = {}

    def __getitem__(self, name: str) -> Statement:
        if name not in self._statements:
            sql = self._filled(name)
            self._statements[name] = self._numbered(sql, _names(sql))
        return self._statements[name]

    def move(self, change: Change) -> MoveStatement:
        """Return the statement that writes a decided move if the record has not moved since the decision."""
        key = (change.move, change.right)
        if key not in self._moves:
            self._moves[key] = self._prepare_move(change.lifecycle, change.move, change.right)
        return self._moves[key]

    def batch(self, change: Change, *, alike: bool) -> MoveBatch:
        """Return the SQLite statement that writes many such moves. `alike` means that only the fields in `DIFFERING`
        differ."""
        key = (change.move, change.right, alike)
        if key not in self._batches:
            update, _, names, extras = self.move(change)
            each = [name for name in names if name in DIFFERING or not alike]
            once = [name for name in names if name not in each]
            sql = _sqlite_batch(change.lifecycle.table, update, once, (*each, *extras))
            self._batches[key] = MoveBatch(sql, _fields(each), _fields(once), extras)
        return self._batches[key]

    def enqueue(self, limited: object, each: tuple[str, ...] = ()) -> BatchStatement:
        """Return the PostgreSQL statement that enqueues one job, or a batch whose jobs differ in the columns `each`.
        The values of one job are its key, its fields, and the notification."""
        name = "enqueue_limited" if limited else "enqueue"
        if (name, each) not in self._shaped:
            self._shaped[name, each] = enqueue_statement(self._filled(name), each)
        return self._shaped[name, each]

    @cached_property
    def enqueue_batch(self) -> tuple[Statement, tuple[str, ...]]:
        """The SQLite statement that enqueues many jobs, and the names of each job's values. The jobs are one JSON array
        of arrays."""
        into, _, values = self._filled("enqueue").partition("VALUES (")
        names = tuple(name for name in _names(values) if name != "now")
        each = _PARAMETER.sub(
            lambda match: match[0] if match[1] == "now" else f"g.{match[1]}", values.removesuffix(")")
        )
        sql = f"{into}SELECT {each} FROM ({_from_json(names, ':rows')}) AS g"
        return self._numbered(sql, _names(sql)), names

    def shaped(self, change: Change, each: tuple[str, ...] = ()) -> BatchStatement:
        """Return the PostgreSQL statement that writes one move, or a batch of moves that differ in the columns `each`.
        The values of one move are its fields and its extras."""
        key = (change.move, change.right), each
        if key not in self._shaped:
            sql, _, names, extras = self.move(change)
            self._shaped[key] = move_statement(change.lifecycle, change.move, sql, (*names, *extras), each)
        return self._shaped[key]

    def given(self, change: Change) -> dict[str, Any]:
        """Return the parameters of the statement of a single move, by name."""
        move = self.move(change)
        values = dict(zip(move.names, move.fields(change), strict=True))
        return values | {name: change.values.get(name) for name in move.extras}

    def hand_over(self, changes: Sequence[Change], unmoved: Sequence[Unmoved]) -> Statement:
        """Return the PostgreSQL statement that writes these moves and starts a new job. It does so only if nothing has
        changed since the read."""
        which = *((change.move.trigger, change.lifecycle.name, change.right) for change in changes), None
        name = f"hand_over {which} {[row.table for row in unmoved]}"
        if name not in self._statements:
            moves = [(change, *self.move(change)) for change in changes]
            given = handover_words(
                [(change, sql, (*names, *extras)) for change, sql, _, names, extras in moves], unmoved
            )
            sql = fill(self._raw["hand_over"], lambda word: given[word] if word in given else self._word(word))
            self._statements[name] = self._numbered(sql, _names(sql))
        return self._statements[name]

    def birth(self, lifecycle: Lifecycle, columns: tuple[str, ...]) -> Statement:
        """Return the statement that creates an entity. It sets these columns in addition to those that every entity
        has."""
        unknown = set(columns) - ENTITY_COLUMNS[lifecycle.name]
        if unknown:
            raise KeyError(f"{lifecycle.name} has no column {', '.join(sorted(unknown))}")
        name = f"create {lifecycle.name} {' '.join(columns)}"
        if name not in self._statements:
            sql = self._birth_sql(lifecycle, columns)
            self._statements[name] = self._numbered(sql, _names(sql))
        return self._statements[name]

    def births(self, lifecycle: Lifecycle, columns: tuple[str, ...]) -> Statement:
        """Return the statement that creates many entities from one JSON array. It has objects on PostgreSQL. On SQLite,
        it has arrays that start with the ID."""
        name = f"create many {lifecycle.name} {' '.join(columns)}"
        if name not in self._statements:
            self.birth(lifecycle, columns)  # rejects unknown columns
            sql = self._births_sql(lifecycle, columns)
            self._statements[name] = self._numbered(sql, _names(sql))
        return self._statements[name]

    def amendment(self, lifecycle: Lifecycle, columns: tuple[str, ...]) -> Statement:
        """Return the statement that sets columns of entities without a move."""
        unknown = set(columns) - AMENDABLE.get(lifecycle.name, frozenset())
        if unknown:
            raise KeyError(f"{', '.join(sorted(unknown))} of {lifecycle.name} cannot be set beside a move")
        sets = ", ".join(f"{column} = :{column}" for column in columns)
        ids = self.dialect.words["ids"]
        sql = f"UPDATE {lifecycle.table} SET {sets} WHERE id IN {ids} AND tenant_id = :tenant_id RETURNING id"
        return self._numbered(sql, _names(sql))

    # --- moves

    def _prepare_move(self, lifecycle: Lifecycle, move: Move, right: Right | None) -> MoveStatement:
        table, now = lifecycle.table, "?2" if self._sqlite else "g.now"
        raw = self._raw_moves.get(_move_name(lifecycle, move), f"UPDATE {table} SET {{moves}} {{applies}}")
        words = {
            "now": now,
            "moves": self._assignments(lifecycle, move, now, move.events),
            "moves_earlier": self._assignments(lifecycle, move, f"{now} - coalesce(:ago_us, 0)", move.events),
            "applies": f"FROM {'given AS g' if self._sqlite else GIVEN} WHERE {_conditions(table, right, now)}",
        }
        update = fill(raw, lambda word: words.get(word) or self._word(word))
        names = sorted({"from_state", *_names(update)}, key=lambda name: (name not in Change._fields, name))
        own = tuple(name for name in names if name in Change._fields)
        return MoveStatement(update, _fields(own), own, tuple(names[len(own) :]))

    def _assignments(self, lifecycle: Lifecycle, move: Move, now: str, steps: int = 1) -> str:
        table, later = lifecycle.table, "max" if self._sqlite else "greatest"
        at = f"{later}({now}, {table}.updated_at + {steps if move.first is None else f'1 + :{TOOK}'})"
        sets = {
            "state": literal(move.target.name),
            "seq": f"{table}.seq + {steps}",
            "move": literal(move.trigger),
            "updated_at": at,
            "actor": ":actor",
            "reason": ":reason",
            "cause": ":cause",
            "detail": ":detail",
        }
        if move.raises_epoch:
            sets["epoch"] = f"{table}.epoch + 1"
        if move.target.started:
            sets["started_at"] = f"coalesce({table}.started_at, {at})"
        elif move.first is not None and move.first.target.started:
            sets["started_at"] = f"coalesce({table}.started_at, {at} - :{TOOK})"
        if move.target.final:
            sets["completed_at"] = f"coalesce({table}.completed_at, {at})"
        elif move.leaves_final:
            sets["completed_at"] = "NULL"
        return ", ".join(f"{column} = {value}" for column, value in sets.items())

    def _claim_assignments(self, triggers: tuple[str, ...]) -> str:
        """Return the assignments of a claim. A claim selects its own records, so it has no reason, cause, or detail."""
        sets = self._assignments(JOB, JOB.move(triggers[-1]), self._now, steps=len(triggers))
        if "start" in triggers:
            sets += ", attempts = jobs.attempts + 1"
        return re.sub(r":(reason|cause|detail)\b", "NULL", sets)

    # --- births

    def _birth_sql(self, lifecycle: Lifecycle, columns: tuple[str, ...]) -> str:
        into, values = self._birth_parts(lifecycle, columns)
        return f"{into} VALUES ({values})" if self._sqlite else birth_sql(f"{into} SELECT {values}", lifecycle)

    def _birth_parts(self, lifecycle: Lifecycle, columns: tuple[str, ...]) -> tuple[str, str]:
        creation, extra = lifecycle.creation, "".join(f", {column}" for column in columns)
        stamp = ", started_at" if creation.target.started else ""
        given = "".join(f", :{column}" for column in columns)
        if lifecycle.shares_table:
            extra, given = f"{extra}, lifecycle", f"{given}, {literal(lifecycle.name)}"
        into = (
            f"INSERT INTO {lifecycle.table} (id, created_at, updated_at{stamp}, tenant_id, state, move, actor, reason, "
            f"cause, detail, correlation_id, trace_id{extra})"
        )
        values = (
            f":id, {self._now}, {self._now}{stamp and f', {self._now}'}, :tenant_id, {literal(creation.target.name)}, "
            f"{literal(creation.trigger)}, :actor, :reason, :cause, :detail, :correlation_id, :trace_id{given}"
        )
        return into, values

    def _births_sql(self, lifecycle: Lifecycle, columns: tuple[str, ...]) -> str:
        """Turn the statement for one birth into one for many. Row values come from the array, and common values
        stay."""
        into, values = self._birth_parts(lifecycle, columns)
        for column in ("id", *columns):
            values = re.sub(rf":{column}\b", f"g.{column}", values)
        if self._sqlite:
            return f"{into} SELECT {values} FROM ({_from_json(('id', *columns), ':rows')}) AS g"
        given = f"json_populate_recordset(NULL::{lifecycle.table}, :rows::json) AS g"
        return birth_sql(f"{into} SELECT {values} FROM {given}", lifecycle)

    # --- words

    @property
    def _now(self) -> str:
        return ":now" if self._sqlite else NOW

    def _filled(self, name: str) -> str:
        plain = name.removesuffix(KNOWN)
        words = {**_WORDS, "now": ":now" if self._sqlite else "keptwork_now()"}
        words["known"] = _LEFT_TO_OTHERS if plain != name else ""
        words |= handover_words([], []) if name == "hand_over" else {}
        words["also_born"], words["woken"] = (_ALSO_BORN, _WOKEN) if name == "enqueue_limited" else ("", "")
        if triggers := CLAIMS.get(plain):
            words |= {"moves": self._claim_assignments(triggers), "claim_events": _claim_events(triggers)}
        if (flows := plain.rpartition("_")[2]) in _FLOWS and plain not in self._raw:
            plain, words["flows"] = plain.removesuffix(f"_{flows}"), flows
        raw = self._raw["claim" if plain in CLAIMS else plain.removesuffix("_limited")]
        return fill(raw, lambda word: self._word(word, words))

    def _word(self, word: str, words: Mapping[str, str] = MappingProxyType({})) -> str | None:
        """Return the value of a word. The statement's own words come first, also within its parts."""
        if word in words:
            return words[word]
        if word in self._parts:
            return fill(self._parts[word], lambda inner: self._word(inner, words))
        return self.dialect.words.get(word) if word in self.dialect.words else _WORDS.get(word) or declared(word)

    def _numbered(self, sql: str, names: tuple[str, ...]) -> Statement:
        mark = "?" if self._sqlite else "$"
        return Statement(_PARAMETER.sub(lambda match: f"{mark}{names.index(match[1]) + 1}", sql), names)


def _move_name(lifecycle: Lifecycle, move: Move) -> str:
    return f"{lifecycle.name}.{move.trigger if move.first is None else f'{move.first.trigger}+{move.trigger}'}"


def _sqlite_batch(table: str, update: str, once: Sequence[str], each: Sequence[str]) -> str:
    """Return one statement that writes many records, given as one JSON array.

    SQLite then processes the whole array in one call while the interpreter runs other threads. The array is
    materialized because SQLite would otherwise search it again at each use in the statement.
    """
    common = "".join(f", ?{place} AS {name}" for place, name in enumerate(once, 3))
    given = _from_json(each, "?1", common)
    return f"WITH given AS MATERIALIZED ({given})\n{_from_batch(update)}\nRETURNING {table}.id"


def _from_json(names: Sequence[str], parameter: str, more: str = "") -> str:
    """Return SQLite rows from an array of arrays. It uses jsonb_each, because json_each serializes a row again for each
    of its values."""
    columns = ", ".join(f"value ->> {place} AS {name}" for place, name in enumerate(names))
    return f"SELECT {columns}{more} FROM jsonb_each({parameter})"


def _fields(names: Sequence[str]) -> Callable[[Change], tuple[object, ...]]:
    """Return a function that gets these fields of a change."""
    places = [Change._fields.index(name) for name in names]
    return itemgetter(*places) if len(places) > 1 else lambda change: tuple(change[place] for place in places)


def _claim_events(triggers: tuple[str, ...]) -> str:
    """Return the events of a claim as rows of (how far behind the row's seq, type, trigger, from, to)."""
    moves = [JOB.move(trigger) for trigger in triggers]
    return ", ".join(
        f"({len(moves) - place}, {literals((m.event, m.trigger, m.sources[0].name, m.target.name))})"
        for place, m in enumerate(moves, 1)
    )


def _conditions(table: str, right: Right | None, now: str) -> str:
    """Return the conditions that must still hold. Nothing has moved the record, and the right to move it still
    exists."""
    conditions = [f"{table}.{column} = :{column}" for column in ("id", "tenant_id", "seq", "epoch")]
    conditions.append(f"{table}.state = :from_state")
    if right is Right.HOLDER:
        conditions += [f"{table}.owner = :owner", f"{table}.lease_until > {now}"]
    elif right is Right.REAPER:
        conditions += [f"{table}.lease_until <= {now}"]
    return " AND ".join(conditions)


def _from_batch(sql: str) -> str:
    """Replace the parameters with the columns of a batch."""
    return _PARAMETER.sub(r"g.\1", sql)


def _names(sql: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_PARAMETER.findall(sql)))


@cache
def _read(name: str) -> dict[str, str]:
    """Return the statements of a file by name, without their comments."""
    text = files("keptwork.store").joinpath("sql", name).read_text("utf-8")
    parts = _HEAD.split(text)[1:]
    return {head: _bare(body) for head, body in zip(parts[::2], parts[1::2], strict=True)}


def _bare(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")
