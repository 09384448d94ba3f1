"""What a database must reject and log, generated from the declarations, in SQL that both databases accept.

The triggers themselves are in `sqlite_guards` and `postgres_guards`. They apply to every client, including `sqlite3`
and `psql`. A move raises `seq` by one and names itself in `move`. Any other change of state, seq, move, or epoch is
rejected.
"""

from __future__ import annotations

from collections.abc import Iterable

from keptwork.core.decide import OVERRIDE, Lifecycle, Move

# The column that identifies a row within its tenant in addition to its ID. The tables have a unique index on it.
UNIQUE_COLUMNS = {"jobs": "key", "runs": "key", "breakers": "name"}

EVENT_COLUMNS = (
    "entity_id, ts, tenant_id, seq, epoch, entity, type, trigger, from_state, to_state, "
    "actor, correlation_id, trace_id, cause, reason, payload"
)


def literal(text: str) -> str:
    """Return a declared word as a SQL string."""
    return "'" + text.replace("'", "''") + "'"


def literals(texts: Iterable[str]) -> str:
    """Return declared words as the content of a SQL list."""
    return ", ".join(literal(text) for text in texts)


def both(*conditions: str) -> str:
    """Join conditions with AND, without the empty ones."""
    return " AND ".join(condition for condition in conditions if condition)


def birth(lifecycle: Lifecycle) -> str:
    """Return the condition for a new row of this lifecycle."""
    return f"NEW.seq = 1 AND NEW.epoch = 0 AND {_named(lifecycle.creation)}"


def birth_with_pair(lifecycle: Lifecycle, pair_allowed: str) -> str:
    """Return the same condition, but allow a declared pair of moves as a part of the birth."""
    ways = [f"WHEN 1 THEN {_named(lifecycle.creation)}"]
    seconds = [lifecycle.move(pair[1]) for pair in lifecycle.pairs if _from_birth(lifecycle, pair)]
    ways += [f"WHEN 3 THEN {_named(second)} AND {pair_allowed}" for second in seconds]
    return f"NEW.epoch = 0 AND CASE NEW.seq {' '.join(ways)} END"


def _from_birth(lifecycle: Lifecycle, pair: tuple[str, str]) -> bool:
    return lifecycle.initial in lifecycle.move(pair[0]).sources


def _named(move: Move) -> str:
    return f"NEW.move = {literal(move.trigger)} AND NEW.state = {literal(move.target.name)}"


def usual(lifecycle: Lifecycle, pair_allowed: str) -> str:
    """Return a short condition for legal moves. It covers a declared move or, where `pair_allowed` holds, a declared
    pair.

    A move that this condition does not cover is left to `legality`. PostgreSQL parses a condition again for every
    statement, and parsing all of `legality` takes longer than the rest of a statement that moves one row.
    """
    steps = {raises: _ways(lifecycle, raises=raises) for raises in (False, True)}
    taken = "OLD.state || '>' || NEW.move || '>' || NEW.state"
    epochs = [f"WHEN OLD.epoch{' + 1' * raises} THEN {taken} = ANY ({ways})" for raises, ways in steps.items() if ways]
    pairs = " OR ".join(_pair(lifecycle, pair) for pair in lifecycle.pairs)
    two = f" WHEN OLD.seq + 2 THEN ({pairs}) AND {pair_allowed}" if pairs else ""
    return f"CASE NEW.seq WHEN OLD.seq + 1 THEN CASE NEW.epoch {' '.join(epochs)} END{two} END"


def _ways(lifecycle: Lifecycle, *, raises: bool) -> str:
    """Return every (from, trigger, to) of the declared moves as one array, with or without a new epoch."""
    moves = [move for move in lifecycle.moves if move.raises_epoch is raises]
    ways = [f"{state.name}>{move.trigger}>{move.target.name}" for move in moves for state in move.sources]
    return literal("{" + ",".join(ways) + "}") + "::text[]" if ways else ""


def legality(lifecycle: Lifecycle, pair_allowed: str) -> str:
    """Return the condition for an UPDATE of state, seq, move, or epoch. It allows no change, one declared move, or,
    where `pair_allowed` holds, a declared pair."""
    branches = [_branch(lifecycle, trigger) for trigger in lifecycle.triggers]
    branches += [
        f"WHEN {literal(note.trigger)} THEN NEW.state = OLD.state AND NEW.epoch = OLD.epoch" for note in lifecycle.notes
    ]
    branches.append(
        f"WHEN {literal(OVERRIDE)} THEN NEW.state IN ({literals(s.name for s in lifecycle.states)}) "
        f"AND NEW.epoch = OLD.epoch + {int(lifecycle.fenced)} AND length(trim(NEW.reason)) > 0"
    )
    unchanged = "NEW.seq = OLD.seq AND NEW.state = OLD.state AND NEW.epoch = OLD.epoch AND NEW.move = OLD.move"
    one = f"NEW.seq = OLD.seq + 1 AND CASE NEW.move {' '.join(branches)} END"
    two = [f"NEW.seq = OLD.seq + 2 AND {_pair(lifecycle, pair)} AND {pair_allowed}" for pair in lifecycle.pairs]
    return " OR ".join(f"({way})" for way in (unchanged, one, *two))


def _pair(lifecycle: Lifecycle, pair: tuple[str, str]) -> str:
    first, second = (lifecycle.move(trigger) for trigger in pair)
    sources = literals(state.name for state in first.sources)
    return (
        f"OLD.state IN ({sources}) AND NEW.state = {literal(second.target.name)} "
        f"AND NEW.move = {literal(second.trigger)} AND NEW.epoch = OLD.epoch"
    )


def _branch(lifecycle: Lifecycle, trigger: str) -> str:
    moves = [move for move in lifecycle.moves if move.trigger == trigger]
    ways = " OR ".join(_way(move) for move in moves)
    return f"WHEN {literal(trigger)} THEN {f'({ways})' if len(moves) > 1 else ways}"


def _way(move: Move) -> str:
    sources = literals(state.name for state in move.sources)
    return (
        f"OLD.state IN ({sources}) AND NEW.state = {literal(move.target.name)} "
        f"AND NEW.epoch = OLD.epoch + {int(move.raises_epoch)}"
    )


def event_type(lifecycle: Lifecycle, move: str) -> str:
    """Return SQL for the event type of the move that a SQL expression names."""
    types = {m.trigger: m.event for m in lifecycle.moves} | {n.trigger: n.event for n in lifecycle.notes}
    types[OVERRIDE] = lifecycle.override_event
    return f"CASE {move} {' '.join(f'WHEN {literal(t)} THEN {literal(e)}' for t, e in types.items())} END"


def stamps(lifecycle: Lifecycle, at: str, row: str, state: str) -> dict[str, str]:
    """Return SQL for started_at and completed_at, by column, when a row enters a state at a time."""
    started = literals(s.name for s in lifecycle.states if s.started)
    final = literals(s.name for s in lifecycle.states if s.final)
    columns = {}
    if started:
        first = f"coalesce({row}.started_at, {at})"
        columns["started_at"] = f"CASE WHEN {state} IN ({started}) THEN {first} ELSE {row}.started_at END"
    if final:
        columns["completed_at"] = f"CASE WHEN {state} IN ({final}) THEN coalesce({row}.completed_at, {at}) END"
    return columns


def birth_stamps(lifecycle: Lifecycle) -> dict[str, str]:
    """Return SQL for the times of a new row, by column, as a replay of its first event sets them."""
    started = "NEW.created_at" if lifecycle.initial.started else "NULL"
    return {"updated_at": "NEW.created_at", "started_at": started, "completed_at": "NULL"}


def mine(lifecycle: Lifecycle, row: str) -> str:
    """Return the condition for this lifecycle's rows in a table that two lifecycles share."""
    return f"{row}.lifecycle = {literal(lifecycle.name)}" if lifecycle.shares_table else ""


def fixed_columns(lifecycle: Lifecycle) -> list[str]:
    """Return the columns that never change after the insert."""
    columns = ["id", "tenant_id", "created_at"]
    columns += [UNIQUE_COLUMNS[lifecycle.table]] if lifecycle.table in UNIQUE_COLUMNS else []
    return columns + (["lifecycle"] if lifecycle.shares_table else [])


def unended(lifecycle: Lifecycle) -> str:
    """Return the condition that the old row has not reached a final state."""
    finals = literals(state.name for state in lifecycle.states if state.final)
    return f"(OLD.state IN ({finals})) IS NOT TRUE" if finals else "OLD.id IS NOT NULL"


def words(lifecycle: Lifecycle) -> dict[str, str]:
    """Return the message of each refusal."""
    name = lifecycle.name
    return {
        "born": f"a new {name} starts as {lifecycle.initial.name}, by {lifecycle.creation.trigger}",
        "unique": f"this {name} exists already and cannot be replaced",
        "moves": f"no declared move of a {name}; a move raises seq by one and names itself in move",
        "fixed": f"id, tenant, key and birth of a {name} never change",
        "kept": f"a {name} that has not ended cannot be deleted",
        "log": "events are append-only",
        "true": "an event is written by the move it records, not by hand",
    }
