"""Generates the triggers of SQLite, which reject what is not declared and write every event, for every client.

Old clients run the triggers, too, so they use only what SQLite has had for years. For example, a RAISE message is a
plain string, and the time comes from julianday.
"""

# ruff: noqa: S608 - every word put into SQL here comes from a declaration in this package, never from a user.

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.decide import Lifecycle, Move
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.store.trigger_rules import (
    EVENT_COLUMNS,
    UNIQUE_COLUMNS,
    birth,
    birth_stamps,
    both,
    event_type,
    fixed_columns,
    legality,
    literal,
    literals,
    mine,
    stamps,
    unended,
    words,
)

# A pair needs two distinct times, so manual SQL that leaves the time out cannot write one.
_TIMED = "NEW.updated_at > OLD.updated_at + 1"
_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)"


def sqlite_guards() -> list[str]:
    """Return every CREATE TRIGGER statement in the order to run them."""
    entities = [s for lifecycle in LIFECYCLES.values() for s in (*_refusals(lifecycle), *_logs(lifecycle))]
    return [*entities, *_event_refusals()]


def _refusals(lifecycle: Lifecycle) -> Iterator[str]:
    table, said = lifecycle.table, words(lifecycle)
    new, old = mine(lifecycle, "NEW"), mine(lifecycle, "OLD")
    changed = " OR ".join(f"NEW.{column} IS NOT OLD.{column}" for column in fixed_columns(lifecycle))
    for rule, event, when in (
        ("born", f"INSERT ON {table}", both(new, f"({birth(lifecycle)}) IS NOT TRUE")),
        ("unique", f"INSERT ON {table}", both(new, f"({_taken(table)})")),
        (
            "moves",
            f"UPDATE OF state, seq, move, epoch ON {table}",
            both(old, f"({legality(lifecycle, _timed(lifecycle))}) IS NOT TRUE"),
        ),
        ("fixed", f"UPDATE OF {', '.join(_fixed_names(lifecycle))} ON {table}", both(old, f"({changed})")),
        ("kept", f"DELETE ON {table}", both(old, unended(lifecycle))),
    ):
        yield _refusal(f"{_trigger_name(lifecycle)}_{rule}", event, when, said[rule])


def _timed(lifecycle: Lifecycle) -> str:
    """Return the condition for a pair, extended if the pair states when its first move happened."""
    tells = any(_first_at(*map(lifecycle.move, pair)) != "NEW.updated_at - 1" for pair in lifecycle.pairs)
    began = "NEW.started_at > OLD.updated_at AND NEW.started_at < NEW.updated_at"
    return f"{_TIMED} AND (OLD.started_at IS NOT NULL OR ({began}))" if tells else _TIMED


def _fixed_names(lifecycle: Lifecycle) -> list[str]:
    """Return the fixed columns. SQLite matches the columns of UPDATE OF by name, and the ID has three more names."""
    return [*fixed_columns(lifecycle), "rowid", "oid", "_rowid_"]


def _taken(table: str) -> str:
    """Return the condition that a row with this key exists. INSERT OR REPLACE would delete that row without firing a
    DELETE trigger."""
    taken = f"EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id)"
    if table not in UNIQUE_COLUMNS:
        return taken
    column = UNIQUE_COLUMNS[table]
    same = f"SELECT 1 FROM {table} WHERE tenant_id = NEW.tenant_id AND {column} = NEW.{column}"
    return f"{taken} OR (NEW.{column} IS NOT NULL AND EXISTS ({same}))"


def _logs(lifecycle: Lifecycle) -> Iterator[str]:
    name, table, new = _trigger_name(lifecycle), lifecycle.table, mine(lifecycle, "NEW")
    moved = both(new, "NEW.seq IS NOT OLD.seq")
    stamped = " AND ".join(f"NEW.{column} IS {value}" for column, value in birth_stamps(lifecycle).items())
    yield (
        f"CREATE TRIGGER {name}_log_birth AFTER INSERT ON {table} "
        f"WHEN {both(new, stamped)} BEGIN {_log(lifecycle, 'NEW', 'NULL')} END"
    )
    # A row inserted manually might omit or invent its times. The time of its creation counts.
    yield (
        f"CREATE TRIGGER {name}_log_hand_birth AFTER INSERT ON {table} "
        f"WHEN {both(new, f'NOT ({stamped})')} BEGIN {_set(lifecycle, birth_stamps(lifecycle))} "
        f"{_log(lifecycle, 'born', 'NULL', f' FROM {table} AS born WHERE born.id = NEW.id')} END"
    )
    one = both(new, "NEW.seq = OLD.seq + 1", "NEW.updated_at > OLD.updated_at")
    yield (
        f"CREATE TRIGGER {name}_log_move AFTER UPDATE OF seq ON {table} "
        f"WHEN {one} BEGIN {_log(lifecycle, 'NEW', 'OLD.state')} END"
    )
    for pair in lifecycle.pairs:
        yield (
            f"CREATE TRIGGER {name}_log_{'_'.join(pair)} AFTER UPDATE OF seq ON {table} "
            f"WHEN {both(new, 'NEW.seq = OLD.seq + 2')} BEGIN {_log_pair(lifecycle, pair)} END"
        )
    # A move without a time comes from manual SQL. It first gets its time, stamps, and actor.
    yield (
        f"CREATE TRIGGER {name}_log_hand AFTER UPDATE OF seq ON {table} "
        f"WHEN {both(moved, 'NEW.updated_at <= OLD.updated_at')} BEGIN {_marks(lifecycle)} "
        f"{_log(lifecycle, 'moved', 'OLD.state', f' FROM {table} AS moved WHERE moved.id = NEW.id')} END"
    )
    # A row inserted manually has an ID of its own choice. Later IDs must be higher.
    yield (
        f"CREATE TRIGGER {name}_key AFTER INSERT ON {table} WHEN {both(new, 'NEW.id > (SELECT key FROM last_key)')} "
        f"BEGIN UPDATE last_key SET key = NEW.id; END"
    )


def _marks(lifecycle: Lifecycle) -> str:
    at = f"max(OLD.updated_at + 1, {_NOW})"
    marks = {
        "updated_at": at,
        "actor": "'sql'",
        "reason": "CASE WHEN NEW.reason IS OLD.reason AND NEW.move <> 'override' THEN NULL ELSE NEW.reason END",
        "cause": "NULL",
        "detail": "NULL",
        **stamps(lifecycle, at, "OLD", "NEW.state"),
    }
    return _set(lifecycle, marks)


def _set(lifecycle: Lifecycle, columns: dict[str, str]) -> str:
    settings = ", ".join(f"{column} = {value}" for column, value in columns.items())
    return f"UPDATE {lifecycle.table} SET {settings} WHERE id = NEW.id;"


def _log(lifecycle: Lifecycle, row: str, from_state: str, source: str = "") -> str:
    """Return the INSERT of an event. Without a `source`, it uses VALUES: for a SELECT into a table with triggers,
    SQLite first fills a temporary table for each row, which takes a quarter of the time of writing the event."""
    values = (
        f"{row}.id, {row}.updated_at, {row}.tenant_id, {row}.seq, {row}.epoch, {literal(lifecycle.name)}, "
        f"{event_type(lifecycle, f'{row}.move')}, {row}.move, {from_state}, {row}.state, {row}.actor, "
        f"{row}.correlation_id, {row}.trace_id, {row}.cause, {row}.reason, {row}.detail"
    )
    return f"INSERT INTO events ({EVENT_COLUMNS}) {f'SELECT {values}{source}' if source else f'VALUES ({values})'};"


def _log_pair(lifecycle: Lifecycle, pair: tuple[str, str]) -> str:
    """Return the INSERTs of a pair's two events. They are two statements for the same reason as in `_log`."""
    first, second = (lifecycle.move(trigger) for trigger in pair)
    entity, between, into = literal(lifecycle.name), literal(first.target.name), f"INSERT INTO events ({EVENT_COLUMNS})"
    return (
        f"{into} VALUES (NEW.id, {_first_at(first, second)}, NEW.tenant_id, NEW.seq - 1, "
        f"NEW.epoch, {entity}, {literals((first.event, first.trigger))}, OLD.state, {between}, "
        f"NEW.actor, NEW.correlation_id, NEW.trace_id, NULL, NULL, NULL); "
        f"{into} VALUES (NEW.id, NEW.updated_at, NEW.tenant_id, "
        f"NEW.seq, NEW.epoch, {entity}, {literals((second.event, second.trigger))}, {between}, "
        f"NEW.state, NEW.actor, NEW.correlation_id, NEW.trace_id, NEW.cause, NEW.reason, NEW.detail);"
    )


def _first_at(first: Move, second: Move) -> str:
    """Return SQL for the time of a pair's first move. It is 1 µs before the second move, or when the row was started,
    if the pair started it for the first time."""
    if not first.target.started or second.target.started:
        return "NEW.updated_at - 1"
    return "CASE WHEN OLD.started_at IS NULL THEN NEW.started_at ELSE NEW.updated_at - 1 END"


def _event_refusals() -> Iterator[str]:
    said = words(LIFECYCLES["job"])
    taken = (
        "EXISTS (SELECT 1 FROM events WHERE id = NEW.id) OR EXISTS "
        "(SELECT 1 FROM events WHERE entity_id = NEW.entity_id AND seq = NEW.seq AND entity = NEW.entity)"
    )
    rows = " ".join(
        f"WHEN {literal(lifecycle.name)} THEN EXISTS (SELECT 1 FROM {lifecycle.table} WHERE id = NEW.entity_id AND "
        f"{both(f'({_fits(lifecycle)})', mine(lifecycle, lifecycle.table))})"
        for lifecycle in LIFECYCLES.values()
    )
    yield _refusal("keptwork_events_no_update", "UPDATE ON events", "", said["log"])
    yield _refusal("keptwork_events_no_delete", "DELETE ON events", "", said["log"])
    # One trigger has both checks, because SQLite sets up each trigger again for every event.
    yield (
        f"CREATE TRIGGER keptwork_events_true BEFORE INSERT ON events "
        f"WHEN {taken} OR (CASE NEW.entity {rows} END) IS NOT TRUE BEGIN "
        f"SELECT {_raise(said['log'])} WHERE {taken}; SELECT {_raise(said['true'])}; END"
    )


def _fits(lifecycle: Lifecycle) -> str:
    """Return the condition that the row has just made the event's move. That is its last move, or the first of its last
    pair."""
    last = "seq = NEW.seq AND move = NEW.trigger AND state = NEW.to_state"
    firsts = [
        f"seq = NEW.seq + 1 AND move = {literal(second)} AND NEW.trigger = {literal(first)}"
        for first, second in lifecycle.pairs
    ]
    return " OR ".join([last, *firsts])


def _refusal(name: str, event: str, when: str, message: str) -> str:
    condition = f"WHEN {when} " if when else ""
    return f"CREATE TRIGGER {name} BEFORE {event} {condition}BEGIN SELECT {_raise(message)}; END"


def _raise(message: str) -> str:
    return f"RAISE(ABORT, {literal('keptwork: ' + message)})"


def _trigger_name(lifecycle: Lifecycle) -> str:
    return f"keptwork_{lifecycle.name.replace('-', '_')}"
