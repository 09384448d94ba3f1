"""The checker of the guards: tries everything by hand and tells what was let through, or not logged as it should be.

Every function yields breaches in words; a sound database has none. The twins (one trigger taken away) run the very same
functions and must get some. The hand has to be inside a transaction: whatever is tried is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keptwork.core.lifecycles import LIFECYCLES
from keptwork.core.replay import replay
from tests.lifecycle.expected import EXPECTED
from tests.store.entities import (
    NOW,
    PAIRS,
    STARTED_AT_BIRTH,
    Entity,
    born,
    event_type,
    every_attempt,
    first_move,
    insert,
    is_legal,
    move,
    new_id,
    pair,
    put,
    way,
)
from tests.store.hands import Hand, Row
from tests.store.probes import Cast, Probe, event_probes, probes, step_log_probes

_REBUILT = ("state", "seq", "epoch", "created_at", "updated_at", "started_at", "completed_at")


def grid_breaches(hand: Hand, name: str) -> Iterator[str]:
    """Every state × every trigger, target and step of the epoch: refused without a trace, or logged exactly once."""
    for source in EXPECTED[name].states:
        entity = put(hand, name, source)
        before, row = _mark(hand, entity), entity.row(hand)
        for trigger, target, epochs in every_attempt(name):
            legal = is_legal(name, source, trigger, target, epochs)
            with hand.attempt(move(entity, trigger, target, epochs)) as refusal:
                if legal:
                    problem = refusal or misrecorded(hand, entity, row, trigger, target, epochs)
                else:
                    problem = _unrefused(refusal, f"no declared move of a {name}") or _changed(hand, entity, before)
            if problem:
                yield f"{name}: {source} –{trigger}→ {target}, epoch +{epochs}: {problem}"


def refusal_breaches(hand: Hand, name: str) -> Iterator[str]:
    """What must never be done to a row of this kind, whatever the statement."""
    yield from _probed(hand, name, probes)


def event_breaches(hand: Hand) -> Iterator[str]:
    """What must never be done to the log."""
    yield from _probed(hand, "job", event_probes)
    yield from _probed(hand, "run-step", step_log_probes)
    yield from _probed(hand, "workstream-step", step_log_probes)


def allowance_breaches(hand: Hand, name: str) -> Iterator[str]:
    """What a hand may do, and how it is written down."""
    expected = EXPECTED[name]
    yield from _born(hand, name)
    entity = born(hand, name)
    yield from _moved(hand, entity, *first_move(name), 0)
    yield from _overridden(hand, name)
    yield from _deleted(hand, name)
    if name == "job":
        yield from _moved(hand, entity, "compensate", expected.initial, 0)
    if hand.dialect == "sqlite":
        yield from _told_its_time(hand, entity)
        yield from _paired(hand, entity) if name in PAIRS else ()
        yield from _keys_come_after(hand, name)


def misrecorded(
    hand: Hand, entity: Entity, before: Row | None, trigger: str, target: str, epochs: int, reason: str | None = None
) -> str | None:
    """What is wrong with the row and its newest event after a move, or nothing."""
    row, events = entity.row(hand), entity.events(hand)
    seq, epoch = (before["seq"] + 1, before["epoch"] + epochs) if before else (1, 0)
    wanted = {
        "entity": entity.name,
        "entity_id": entity.id,
        "tenant_id": 1,
        "type": event_type(entity.name, trigger),
        "trigger": trigger,
        "from_state": before["state"] if before else None,
        "to_state": target,
        "seq": seq,
        "epoch": epoch,
        "ts": row["updated_at"],
        "actor": hand.user if before else None,
        "reason": reason,
    }
    if len(events) != seq:
        return f"{len(events)} events for {seq} moves"
    wrong = {field: events[-1][field] for field, value in wanted.items() if events[-1][field] != value}
    if wrong:
        return f"the event says {wrong}"
    if before and row["updated_at"] <= before["updated_at"]:
        return "time stood still"
    return not_rebuilt(entity.name, row, events)


def not_rebuilt(name: str, row: Row, events: list[Row]) -> str | None:
    """How the row differs from what its events say, or nothing."""
    rebuilt = replay(LIFECYCLES[name], events)
    wrong = {field: row[field] for field in _REBUILT if row[field] != getattr(rebuilt, field)}
    return rebuilt.problem or (f"the row says {wrong}, its events {rebuilt}" if wrong else None)


def _born(hand: Hand, name: str) -> Iterator[str]:
    """Whatever times the row came with, they are those of its birth in the end."""
    expected = EXPECTED[name]
    for title, times in {
        "birth without times": {},
        "birth with its times": {"started_at": str(NOW)} if name in STARTED_AT_BIRTH else {},
        "birth with times made up": {"updated_at": str(NOW + 5), "started_at": "7", "completed_at": str(NOW + 9)},
    }.items():
        entity = Entity(name, new_id())
        with hand.attempt(insert(name, entity.id, **times)) as refusal:
            problem = refusal or misrecorded(hand, entity, None, expected.create, expected.initial, 0)
            yield from _said(name, title, problem)


def _moved(
    hand: Hand, entity: Entity, trigger: str, target: str, epochs: int, reason: str | None = None
) -> Iterator[str]:
    before = entity.row(hand)
    more = f", reason = '{reason}'" if reason else ""
    with hand.attempt(move(entity, trigger, target, epochs, more)) as refusal:
        problem = refusal or misrecorded(hand, entity, before, trigger, target, epochs, reason)
    yield from _said(entity.name, f"{before['state']} –{trigger}→ {target}", problem)


def _overridden(hand: Hand, name: str) -> Iterator[str]:
    """From any state to any state, out of final ones too; only a job's claims are fenced off by it."""
    for source in EXPECTED[name].states:
        entity = put(hand, name, source)
        for target in EXPECTED[name].states:
            yield from _moved(hand, entity, "override", target, int(name == "job"), "the operator knows better")


def _told_its_time(hand: Hand, entity: Entity) -> Iterator[str]:
    """SQLite knows the product's own moves by their time: such a move is logged as it says, and once."""
    trigger, target = first_move(entity.name)
    before = entity.row(hand)
    stamps = "".join(
        f", {column} = {value}" for column, value in {"updated_at": "updated_at + 5", "actor": "'me'"}.items()
    )
    with hand.attempt(move(entity, trigger, target, 0, stamps)) as refusal:
        events = entity.events(hand)
        told = [(e["ts"], e["actor"], e["from_state"], e["to_state"]) for e in events[1:]]
        wanted = [(before["updated_at"] + 5, "me", before["state"], target)]
        yield from _said(entity.name, "a move that tells its time", refusal or (None if told == wanted else str(told)))


def _paired(hand: Hand, entity: Entity) -> Iterator[str]:
    """The product makes some moves in one write: two moves, two events, in their order."""
    before = entity.row(hand)
    between, _, last, times = PAIRS[entity.name]
    with hand.attempt(pair(entity, f", {times}, actor = 'me'")) as refusal:
        told = [(e["seq"], e["ts"], e["actor"], e["from_state"], e["to_state"]) for e in entity.events(hand)[1:]]
        first, second = before["updated_at"] + 1, entity.row(hand)["updated_at"]
        wanted = [(2, first, "me", before["state"], between), (3, second, "me", between, last)]
        yield from _said(entity.name, "a pair of moves", refusal or (None if told == wanted else str(told)))


def _deleted(hand: Hand, name: str) -> Iterator[str]:
    """What has ended may go, and its events stay; what has not ended stays."""
    for state in EXPECTED[name].states:
        entity = put(hand, name, state)
        with hand.attempt(f"DELETE FROM {entity.table} WHERE id = {entity.id}") as refusal:
            if state in EXPECTED[name].final:
                problem = refusal or (
                    None if len(entity.events(hand)) > len(way(name, state)) else "its events went too"
                )
            else:
                problem = _unrefused(refusal, f"a {name} that has not ended cannot be deleted")
        yield from _said(name, f"delete when {state}", problem)


def _keys_come_after(hand: Hand, name: str) -> Iterator[str]:
    """A row that chose its own key: keys the product gives out later are beyond it."""
    far = 4_000_000_000_000_000_000 + new_id()
    with hand.attempt(insert(name, far)) as refusal:
        (last,) = hand.rows("SELECT key FROM last_key")
        yield from _said(name, "key", refusal or (None if last["key"] == far else f"the last key is {last['key']}"))


def _probed(hand: Hand, name: str, catalogue: Any) -> Iterator[str]:
    cast = Cast.of(hand, name)
    before = _everything(hand, cast)
    probe: Probe
    for probe in catalogue(cast, hand.dialect):
        with hand.attempt(probe.sql) as refusal:
            changed = None if _everything(hand, cast) == before else "it changed something"
            problem = _unrefused(refusal, probe.says) or changed
        if problem:
            yield f"{name}: {probe.title}: {problem}"


def _unrefused(refusal: str | None, says: str) -> str | None:
    if refusal is None:
        return "it was let through"
    return None if f"keptwork: {says}" in refusal else f"it was refused with {refusal!r}"


def _mark(hand: Hand, entity: Entity) -> list[Row]:
    """Enough of a row and the log to see that neither changed, in one trip."""
    columns = "state, seq, epoch, move, updated_at, started_at, completed_at, actor, reason"
    return hand.rows(
        f"SELECT {columns}, (SELECT count(*) FROM events) AS logged FROM {entity.table} WHERE id = {entity.id}"
    )


def _changed(hand: Hand, entity: Entity, before: list[Row]) -> str | None:
    return None if _mark(hand, entity) == before else "it was refused and yet changed something"


def _everything(hand: Hand, cast: Cast) -> list[list[Row]]:
    """The table and the log; both are small here."""
    return [hand.rows(f"SELECT * FROM {t} ORDER BY id") for t in (cast.fresh.table, "events")]


def _said(name: str, what: str, problem: str | None) -> Iterator[str]:
    if problem:
        yield f"{name}: {what}: {problem}"
