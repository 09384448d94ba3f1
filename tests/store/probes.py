"""Statements that must be refused, with the words they must be refused with: everything a hand might try on a row, and
everything it might try on the log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tests.lifecycle.expected import EXPECTED
from tests.store.entities import FENCED, NOW, PAIRS, UNIQUE, Entity, born, first_move, insert, move, new_id, pair, put
from tests.store.hands import Hand

APPEND_ONLY = "events are append-only"
NOT_BY_HAND = "an event is written by the move it records, not by hand"


class Probe(NamedTuple):
    """One statement and the beginning of its refusal."""

    title: str
    sql: str
    says: str


class Cast(NamedTuple):
    """The rows a probe may name: two that have just been born, and one further on."""

    fresh: Entity
    other: Entity
    later: Entity

    @classmethod
    def of(cls, hand: Hand, name: str) -> Cast:
        unique = UNIQUE.get(name)
        one, two = (born(hand, name, **({unique: f"'{word}'"} if unique else {})) for word in ("one", "two"))
        return cls(one, two, put(hand, name, first_move(name)[1]))


def probes(cast: Cast, dialect: str) -> Iterator[Probe]:
    """Everything that must never be done to a row."""
    yield from _wrong_moves(cast)
    yield from _wrong_overrides(cast)
    yield from _wrong_births(cast)
    yield from _edits(cast)
    yield from _removals(cast, dialect)
    yield from _sqlite_tricks(cast) if dialect == "sqlite" else _postgres_tricks(cast)


def _wrong_moves(cast: Cast) -> Iterator[Probe]:
    entity, name = cast.fresh, cast.fresh.name
    says = f"no declared move of a {name}; a move raises seq by one and names itself in move"
    trigger, target = first_move(name)
    for title, settings in {
        "a state without seq and move": f"state = '{target}'",
        "a state and a move without seq": f"state = '{target}', move = '{trigger}'",
        "a state and seq without a move": f"state = '{target}', seq = seq + 1",
        "seq alone": "seq = seq + 1",
        "seq raised by two": f"state = '{target}', move = '{trigger}', seq = seq + 2",
        "seq set back": f"state = '{target}', move = '{trigger}', seq = seq - 1",
        "seq taken away": f"state = '{target}', move = '{trigger}', seq = NULL",
        "a move alone": f"move = '{trigger}'",
        "a move without its state": f"seq = seq + 1, move = '{trigger}'",
        "an unknown move": f"state = '{target}', seq = seq + 1, move = 'fly'",
        "an unknown state": f"state = 'NOWHERE', seq = seq + 1, move = '{trigger}'",
        "its birth again": f"seq = seq + 1, move = '{EXPECTED[name].create}'",
        "an epoch alone": "epoch = epoch + 1",
        "an epoch set back": f"state = '{target}', seq = seq + 1, move = '{trigger}', epoch = epoch - 1",
        "an epoch raised by two": f"state = '{target}', seq = seq + 1, move = '{trigger}', epoch = epoch + 2",
    }.items():
        yield Probe(title, f"UPDATE {entity.table} SET {settings} WHERE id = {entity.id}", says)
    both = f"id IN ({entity.id}, {cast.later.id})"
    several = f"UPDATE {entity.table} SET state = '{target}', seq = seq + 1, move = '{trigger}' WHERE {both}"
    yield Probe("several rows, one of which may not", several, says)
    if name in PAIRS:
        yield Probe("a pair of moves by hand", pair(entity), says)
    if name in PAIRS and name != "job":
        for began in ("updated_at", "updated_at + 9", "NULL"):
            times = f", updated_at = updated_at + 9, started_at = {began}"
            yield Probe(f"a pair of moves that began at {began}", pair(entity, times), says)
    if name == "job":
        yield Probe("a note that moves", move(entity, "compensate", "running"), says)
        yield Probe("a note that raises the epoch", move(entity, "compensate", "queued", 1), says)
    else:
        yield Probe("a job's note", move(entity, "compensate", EXPECTED[name].initial), says)


def _wrong_overrides(cast: Cast) -> Iterator[Probe]:
    entity, says = cast.fresh, f"no declared move of a {cast.fresh.name}"
    target, step = EXPECTED[entity.name].states[-1], int(entity.name in FENCED)
    yield Probe("an override without a reason", move(entity, "override", target, step), says)
    for reason in ("NULL", "''", "'   '"):
        blank = move(entity, "override", target, step, f", reason = {reason}")
        yield Probe(f"an override with the reason {reason}", blank, says)
    because = ", reason = 'because'"
    yield Probe("an override to nowhere", move(entity, "override", "NOWHERE", step, because), says)
    yield Probe("an override with a wrong epoch", move(entity, "override", target, 1 - step, because), says)


def _wrong_births(cast: Cast) -> Iterator[Probe]:
    name, expected = cast.fresh.name, EXPECTED[cast.fresh.name]
    says = f"a new {name} starts as {expected.initial}, by {expected.create}"
    wrong = {f"born {state}": {"state": f"'{state}'"} for state in expected.states if state != expected.initial}
    wrong |= {f"born with seq {seq}": {"seq": seq} for seq in ("0", "2", "-1")}
    wrong |= {f"born with epoch {epoch}": {"epoch": epoch} for epoch in ("1", "-1")}
    wrong |= {f"born by {trigger}": {"move": f"'{trigger}'"} for trigger in (first_move(name)[0], "override", "fly")}
    for title, changed in wrong.items():
        yield Probe(title, insert(name, new_id(), **changed), says)


def _edits(cast: Cast) -> Iterator[Probe]:
    entity = cast.fresh
    says = f"id, tenant, key and birth of a {entity.name} never change"
    columns = {"id": str(new_id()), "tenant_id": "2", "created_at": str(NOW + 1)}
    columns |= {UNIQUE[entity.name]: "'another'"} if entity.name in UNIQUE else {}
    if entity.table == "steps":
        columns["lifecycle"] = "'workstream-step'" if entity.name == "run-step" else "'run-step'"
    for column, value in columns.items():
        yield Probe(f"another {column}", f"UPDATE {entity.table} SET {column} = {value} WHERE id = {entity.id}", says)
        trigger, target = first_move(entity.name)
        hidden = move(entity, trigger, target, more=f", {column} = {value}")
        yield Probe(f"another {column} along with a legal move", hidden, says)
    if "key" in columns:
        yield Probe("no key any more", f"UPDATE {entity.table} SET key = NULL WHERE id = {entity.id}", says)


def _removals(cast: Cast, dialect: str) -> Iterator[Probe]:
    says = f"a {cast.fresh.name} that has not ended cannot be deleted"
    table = cast.fresh.table
    yield Probe("delete", f"DELETE FROM {table} WHERE id = {cast.fresh.id}", says)
    yield Probe("delete all", f"DELETE FROM {table} WHERE id IN ({cast.fresh.id}, {cast.later.id})", says)
    if dialect == "postgres":
        # Two kinds of steps share a table: whichever guard is asked first answers.
        kept = "" if table == "steps" else says
        yield Probe("truncate", f"TRUNCATE {table}", kept)
        yield Probe("truncate with others", f"TRUNCATE {table}, queues RESTART IDENTITY CASCADE", kept)


def _sqlite_tricks(cast: Cast) -> Iterator[Probe]:
    entity, name = cast.fresh, cast.fresh.name
    exists = f"this {name} exists already and cannot be replaced"
    fixed = f"id, tenant, key and birth of a {name} never change"
    illegal = f"no declared move of a {name}"
    trigger, target = first_move(name)
    takes = f"state = '{target}', seq = seq + 1, move = '{trigger}'"
    for how in ("INSERT OR REPLACE", "REPLACE"):
        yield Probe(f"{how} by id", insert(name, entity.id, how), exists)
    upsert = f"{insert(name, entity.id)} ON CONFLICT (id) DO UPDATE SET"
    yield Probe("an upsert that moves", f"{upsert} {takes}", exists)
    yield Probe("an upsert that jumps", f"{upsert} state = 'NOWHERE'", exists)
    for alias in ("id", "rowid", "oid", "_rowid_"):
        elsewhere = f"{entity.table} SET {alias} = {new_id()} WHERE id = {entity.id}"
        yield Probe(f"another {alias}", f"UPDATE {elsewhere}", fixed)
        onto = f"{entity.table} SET {alias} = {cast.other.id} WHERE id = {entity.id}"
        yield Probe(f"onto another row by {alias}", f"UPDATE OR REPLACE {onto}", fixed)
    for how in ("IGNORE", "REPLACE", "FAIL"):
        rows = f"id IN ({entity.id}, {cast.later.id})"
        yield Probe(f"UPDATE OR {how}", f"UPDATE OR {how} {entity.table} SET {takes} WHERE {rows}", illegal)
    if unique := UNIQUE.get(name):
        same = {unique: "'one'"}
        yield Probe(f"replaced by {unique}", insert(name, new_id(), "INSERT OR REPLACE", **same), exists)
        onto = f"UPDATE OR REPLACE {entity.table} SET {unique} = 'two' WHERE id = {entity.id}"
        yield Probe(f"onto another row by {unique}", onto, fixed)


def _postgres_tricks(cast: Cast) -> Iterator[Probe]:
    entity, name = cast.fresh, cast.fresh.name
    illegal = f"no declared move of a {name}"
    upsert = f"{insert(name, entity.id)} ON CONFLICT (id) DO UPDATE SET"
    yield Probe("an upsert that jumps", f"{upsert} state = 'NOWHERE'", illegal)
    later = f"{insert(name, cast.later.id)} ON CONFLICT (id) DO UPDATE SET state = excluded.state, seq = 1"
    yield Probe("an upsert that starts over", later, illegal)


def event_probes(cast: Cast, dialect: str) -> Iterator[Probe]:
    """Everything that must never be done to the log."""
    mine = f"entity_id = {cast.fresh.id}"
    for column, value in {"reason": "'forged'", "ts": "0", "seq": "7", "actor": "NULL", "entity_id": "5"}.items():
        yield Probe(f"edit {column}", f"UPDATE events SET {column} = {value} WHERE {mine}", APPEND_ONLY)
    yield Probe("delete one", f"DELETE FROM events WHERE {mine}", APPEND_ONLY)
    yield Probe("delete all", "DELETE FROM events", APPEND_ONLY)
    yield from _forgeries(cast)
    yield from _sqlite_log_tricks(cast) if dialect == "sqlite" else _postgres_log_tricks(cast)


def _forged(entity_id: int, seq: int, trigger: str, target: str, how: str = "INSERT", **more: str) -> str:
    columns = {
        "entity_id": str(entity_id),
        "ts": "5",
        "tenant_id": "1",
        "seq": str(seq),
        "epoch": "0",
        "entity": "'job'",
        "type": f"'job_{trigger}'",
        "trigger": f"'{trigger}'",
        "to_state": f"'{target}'",
        **more,
    }
    return f"{how} INTO events ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


def _forgeries(cast: Cast) -> Iterator[Probe]:
    id = cast.fresh.id
    yield Probe("a forged next event", _forged(id, 2, "claim", "assigned"), NOT_BY_HAND)
    yield Probe("a forged event of a row that is not there", _forged(new_id(), 1, "enqueue", "queued"), NOT_BY_HAND)
    unknown = _forged(id, 1, "enqueue", "queued", entity="'ghost'")
    yield Probe("a forged event of an unknown kind", unknown, NOT_BY_HAND)
    worker = _forged(id, 1, "enqueue", "queued", entity="'worker'")
    yield Probe("a job's event in a worker's name", worker, NOT_BY_HAND)


def step_log_probes(cast: Cast, dialect: str) -> Iterator[Probe]:
    """Two kinds of steps share a table: an event of the one is not to be had in the name of the other."""
    entity, other = cast.fresh, "workstream-step" if cast.fresh.name == "run-step" else "run-step"
    initial = EXPECTED[entity.name].initial
    forged = _forged(entity.id, 1, "create", initial, entity=f"'{other}'")
    yield Probe(f"a {entity.name}'s event in a {other}'s name", forged, NOT_BY_HAND)


def _sqlite_log_tricks(cast: Cast) -> Iterator[Probe]:
    id = cast.fresh.id
    newest = f"(SELECT max(id) FROM events WHERE entity_id = {id})"
    for how in ("INSERT", "INSERT OR REPLACE", "INSERT OR IGNORE"):
        yield Probe(f"{how} of the same seq", _forged(id, 1, "enqueue", "queued", how), APPEND_ONLY)
    for alias in ("id", "rowid", "_rowid_", "oid"):
        by_id = _forged(id, 1, "enqueue", "queued", "INSERT OR REPLACE", **{alias: newest})
        yield Probe(f"replaced by {alias}", by_id, APPEND_ONLY)
        other = _forged(cast.later.id, 2, "claim", "assigned", "INSERT OR REPLACE", **{alias: newest})
        yield Probe(f"another's event put in place by {alias}", other, APPEND_ONLY)
        moved = f"UPDATE OR REPLACE events SET {alias} = {alias} + 1 WHERE entity_id = {id}"
        yield Probe(f"moved over the next by {alias}", moved, APPEND_ONLY)
    upsert = f"{_forged(id, 1, 'enqueue', 'queued')} ON CONFLICT (entity_id, seq, entity) DO UPDATE SET reason = 'x'"
    yield Probe("an upsert", upsert, APPEND_ONLY)


def _postgres_log_tricks(cast: Cast) -> Iterator[Probe]:
    id = cast.fresh.id
    yield Probe("a second event of the same seq", _forged(id, 1, "enqueue", "queued"), NOT_BY_HAND)
    upsert = f"{_forged(id, 1, 'enqueue', 'queued')} ON CONFLICT (entity_id, seq, entity) DO UPDATE SET reason = 'x'"
    yield Probe("an upsert", upsert, NOT_BY_HAND)
    yield Probe("truncate", "TRUNCATE events", APPEND_ONLY)
    yield Probe("truncate with others", "TRUNCATE queues, events RESTART IDENTITY CASCADE", APPEND_ONLY)
    yield Probe("a copy of the log into itself", "INSERT INTO events SELECT * FROM events", NOT_BY_HAND)
