"""Generates the triggers of PostgreSQL, which reject what is not declared and log what Keptwork does not log itself.

A trigger's WHEN clause states what is legal, so that a declared move calls no function. The server parses that clause
again for every statement, so it is short: it covers the usual moves, and a function decides the rest. Keptwork writes
its events in the statement that moves the rows, and declares that with the setting `keptwork.logs`. The moves of every
other session are logged by trigger.
"""

# ruff: noqa: S608 - every word put into SQL here comes from a declaration in this package, never from a user.

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.decide import Lifecycle
from keptwork.core.lifecycles import LIFECYCLES
from keptwork.store.trigger_rules import (
    EVENT_COLUMNS,
    birth_stamps,
    birth_with_pair,
    both,
    event_type,
    fixed_columns,
    legality,
    literal,
    mine,
    stamps,
    unended,
    usual,
    words,
)

_FOREIGN = "current_setting('keptwork.logs', true) IS DISTINCT FROM 'self'"
_OWN = "current_setting('keptwork.logs', true) = 'self'"

_REFUSE = """CREATE OR REPLACE FUNCTION keptwork_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'DT001', MESSAGE = 'keptwork: ' || TG_ARGV[0];
END $$"""

# The operators are the server's own, whatever search_path the session has.
_DECIDE_MOVE = """CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF {legal} THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'DT001', MESSAGE = format(
        'keptwork: %s: %s -%s-> %s, seq %s to %s, epoch %s to %s',
        TG_ARGV[0], OLD.state, NEW.move, NEW.state, OLD.seq, NEW.seq, OLD.epoch, NEW.epoch);
END $$"""


def postgres_guards() -> list[str]:
    """Return every CREATE FUNCTION and CREATE TRIGGER statement in the order to run them."""
    entities = [s for lifecycle in LIFECYCLES.values() for s in (*_refusals(lifecycle), *_logs(lifecycle))]
    return [_REFUSE, *entities, *_event_refusals()]


def _refusals(lifecycle: Lifecycle) -> Iterator[str]:
    name, table, said = _trigger_name(lifecycle), lifecycle.table, words(lifecycle)
    new, old, fixed = mine(lifecycle, "NEW"), mine(lifecycle, "OLD"), fixed_columns(lifecycle)
    changed = " OR ".join(f"NEW.{column} IS DISTINCT FROM OLD.{column}" for column in fixed)
    yield _DECIDE_MOVE.format(name=f"{name}_moves", legal=legality(lifecycle, _OWN))
    for rule, event, when in (
        ("born", f"INSERT ON {table}", both(new, f"({birth_with_pair(lifecycle, _OWN)}) IS NOT TRUE")),
        (
            "moves",
            f"UPDATE OF state, seq, move, epoch ON {table}",
            both(old, f"({usual(lifecycle, _OWN)}) IS NOT TRUE"),
        ),
        ("fixed", f"UPDATE OF {', '.join(fixed)} ON {table}", both(old, f"({changed})")),
        ("kept", f"DELETE ON {table}", both(old, unended(lifecycle))),
    ):
        decides = f"{name}_moves" if rule == "moves" else "keptwork_refuse"
        yield _trigger(f"{name}_{rule}", f"BEFORE {event}", when, f"{decides}({literal(said[rule])})")
    yield _statement_trigger(f"{name}_no_truncate", table, said["kept"])


def _logs(lifecycle: Lifecycle) -> Iterator[str]:
    name, table, new = _trigger_name(lifecycle), lifecycle.table, mine(lifecycle, "NEW")
    moved = both(new, "NEW.seq <> OLD.seq", _FOREIGN)
    yield _by_hand_function(lifecycle)
    yield _born_by_hand_function(lifecycle)
    yield _log_function(lifecycle)
    yield _trigger(f"{name}_by_hand", f"BEFORE UPDATE OF seq ON {table}", moved, f"{name}_by_hand()")
    yield _trigger(f"{name}_born_by_hand", f"BEFORE INSERT ON {table}", both(new, _FOREIGN), f"{name}_born_by_hand()")
    yield _trigger(f"{name}_log_birth", f"AFTER INSERT ON {table}", both(new, _FOREIGN), f"{name}_log()")
    yield _trigger(f"{name}_log_move", f"AFTER UPDATE OF seq ON {table}", moved, f"{name}_log()")


def _by_hand_function(lifecycle: Lifecycle) -> str:
    """Return the function that sets time, stamps, and actor of a move by another session."""
    marks = {
        "updated_at": "greatest(keptwork_now(), OLD.updated_at + 1)",
        "actor": "'sql:' || session_user",
        "reason": "CASE WHEN NEW.reason IS DISTINCT FROM OLD.reason OR NEW.move = 'override' THEN NEW.reason END",
        "cause": "NULL",
        "detail": "NULL",
        **stamps(lifecycle, "NEW.updated_at", "OLD", "NEW.state"),
    }
    body = "".join(f"    NEW.{column} := {value};\n" for column, value in marks.items())
    return _function(f"{_trigger_name(lifecycle)}_by_hand", f"{body}    RETURN NEW;\n")


def _born_by_hand_function(lifecycle: Lifecycle) -> str:
    """Return the function that sets the times of a row by another session. That session might omit or invent them. The
    time of its creation counts."""
    body = "".join(f"    NEW.{column} := {value};\n" for column, value in birth_stamps(lifecycle).items())
    return _function(f"{_trigger_name(lifecycle)}_born_by_hand", f"{body}    RETURN NEW;\n")


def _log_function(lifecycle: Lifecycle) -> str:
    values = (
        f"NEW.id, NEW.updated_at, NEW.tenant_id, NEW.seq, NEW.epoch, {literal(lifecycle.name)}, "
        f"{event_type(lifecycle, 'NEW.move')}, NEW.move, CASE TG_OP WHEN 'UPDATE' THEN OLD.state END, NEW.state, "
        f"NEW.actor, NEW.correlation_id, NEW.trace_id, NEW.cause, NEW.reason, NEW.detail"
    )
    insert = f"    INSERT INTO events ({EVENT_COLUMNS}) VALUES ({values});\n"
    return _function(f"{_trigger_name(lifecycle)}_log", f"{insert}    RETURN NULL;\n")


def _event_refusals() -> Iterator[str]:
    said = words(LIFECYCLES["job"])
    refuse = f"keptwork_refuse({literal(said['log'])})"
    change = "BEFORE UPDATE OR DELETE ON events FOR EACH ROW"
    yield f"CREATE TRIGGER keptwork_events_no_change {change} EXECUTE FUNCTION {refuse}"
    yield _statement_trigger("keptwork_events_no_truncate", "events", said["log"])
    by_hand = f"{_FOREIGN} AND pg_trigger_depth() = 0"
    yield _trigger(
        "keptwork_events_true", "BEFORE INSERT ON events", by_hand, f"keptwork_refuse({literal(said['true'])})"
    )


def _function(name: str, body: str) -> str:
    """Return a trigger function that finds the tables whatever search_path the session has."""
    return (
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$\n"
        f"BEGIN\n{body}END $$"
    )


def _trigger(name: str, event: str, when: str, call: str) -> str:
    return f"CREATE TRIGGER {name} {event} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION {call}"


def _statement_trigger(name: str, table: str, message: str) -> str:
    refuse = f"keptwork_refuse({literal(message)})"
    return f"CREATE TRIGGER {name} BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION {refuse}"


def _trigger_name(lifecycle: Lifecycle) -> str:
    return f"keptwork_{lifecycle.name.replace('-', '_')}"
