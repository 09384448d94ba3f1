"""Rows typed by hand: how one of each kind is born, and how it is brought into a state by legal moves.

States and moves come from `tests.lifecycle.expected`, never from the declarations; the tables and the names of events
are typed a second time here for the same reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from tests.lifecycle.expected import EXPECTED, JOB_EVENTS
from tests.store.hands import Hand, Row

NOW = 1_700_000_000_000_000

# Table, and the columns a row cannot be without, beside those every entity has. {id} makes names unique.
TABLES: dict[str, tuple[str, dict[str, str]]] = {
    "job": ("jobs", {"run_at": "0", "queue": "'default'", "kind": "'by hand'", "payload": "'{{}}'"}),
    "worker": ("workers", {"name": "'w'", "incarnation": "'i'", "workspace_id": "'ws'"}),
    "crew": ("crews", {"task_description": "'dig'"}),
    "run": ("runs", {}),
    "run-step": ("steps", {"lifecycle": "'run-step'", "name": "'s'"}),
    "workstream": ("workstreams", {}),
    "workstream-step": ("steps", {"lifecycle": "'workstream-step'", "name": "'s'"}),
    "breaker": ("breakers", {"name": "'tool {id}'"}),
    "agent": ("agent_jobs", {"description": "'think'"}),
}
FENCED = {"job"}

# Two moves that may be made in one write: the state between them, the second, where it leads, and what else is set.
PAIRS = {
    "job": ("assigned", "start", "running", "updated_at = updated_at + 2"),
    "run-step": ("RUNNING", "succeed", "SUCCEEDED", "updated_at = updated_at + 9, started_at = updated_at + 1"),
    "workstream-step": (
        "S_RUNNING",
        "success",
        "S_SUCCESS",
        "updated_at = updated_at + 9, started_at = updated_at + 1",
    ),
}
STARTED_AT_BIRTH = {"agent"}

# Each entity's own unique column, if it has one beside its id.
UNIQUE = {"job": "key", "run": "key", "breaker": "name"}

_ids = count(1_000_001)


class Entity(NamedTuple):
    """A row in the database."""

    name: str
    id: int

    @property
    def table(self) -> str:
        return TABLES[self.name][0]

    def row(self, hand: Hand) -> Row:
        return hand.rows(f"SELECT * FROM {self.table} WHERE id = {self.id}")[0]

    def events(self, hand: Hand) -> list[Row]:
        """Its log, oldest first."""
        return hand.rows(f"SELECT * FROM events WHERE entity_id = {self.id} AND entity = '{self.name}' ORDER BY seq")


def new_id() -> int:
    return next(_ids)


def insert(kind: str, id: int, how: str = "INSERT", **changed: str) -> str:
    """The statement that bears a row; `changed` columns are SQL expressions."""
    table, needed = TABLES[kind]
    expected = EXPECTED[kind]
    columns = {
        "id": str(id),
        "tenant_id": "1",
        "created_at": str(NOW),
        "updated_at": str(NOW),
        "state": f"'{expected.initial}'",
        "move": f"'{expected.create}'",
        **{column: value.format(id=id) for column, value in needed.items()},
        **changed,
    }
    return f"{how} INTO {table} ({', '.join(columns)}) VALUES ({', '.join(columns.values())})"


def pair(entity: Entity, more: str = "") -> str:
    """The statement that makes both moves of a pair."""
    _, trigger, target, _ = PAIRS[entity.name]
    return (
        f"UPDATE {entity.table} SET seq = seq + 2, state = '{target}', move = '{trigger}'{more} WHERE id = {entity.id}"
    )


def move(entity: Entity, trigger: str, target: str, epochs: int = 0, more: str = "") -> str:
    """The statement a hand would type to move a row."""
    raised = f", epoch = epoch + {epochs}" if epochs else ""
    return (
        f"UPDATE {entity.table} SET state = '{target}', seq = seq + 1, move = '{trigger}'{raised}{more} "
        f"WHERE id = {entity.id}"
    )


def born(hand: Hand, kind: str, **changed: str) -> Entity:
    """A row in its initial state."""
    entity = Entity(kind, new_id())
    hand.run(insert(kind, entity.id, **changed))
    return entity


def put(hand: Hand, name: str, state: str) -> Entity:
    """A row in a state, by the fewest legal moves."""
    entity = born(hand, name)
    for trigger, target in way(name, state):
        hand.run(move(entity, trigger, target, int(trigger in EXPECTED[name].raises_epoch)))
    return entity


def way(name: str, state: str) -> tuple[tuple[str, str], ...]:
    """The fewest moves from the initial state to another: (trigger, to) each."""
    ways: dict[str, tuple[tuple[str, str], ...]] = {EXPECTED[name].initial: ()}
    queue = [EXPECTED[name].initial]
    while queue:
        here = queue.pop(0)
        for trigger, source, target in EXPECTED[name].moves:
            if source == here and target not in ways:
                ways[target] = (*ways[here], (trigger, target))
                queue.append(target)
    return ways[state]


def first_move(name: str) -> tuple[str, str]:
    """A legal move out of the initial state: (trigger, to)."""
    return next((t, to) for t, source, to in EXPECTED[name].moves if source == EXPECTED[name].initial)


def event_type(name: str, trigger: str) -> str:
    """What the event of a move is called: the seed's own word for a job's, else entity and trigger."""
    if trigger == "override":
        return f"{name.replace('-', '_')}_overridden"
    if name == "job":
        return {**JOB_EVENTS, "compensate": "job_compensated"}[trigger]
    return f"{name.replace('-', '_')}_{trigger}"


def every_attempt(name: str) -> Iterator[tuple[str, str, int]]:
    """(trigger, to, epochs): everything a hand could try in any state, undeclared words among it."""
    expected = EXPECTED[name]
    for trigger in (*sorted(expected.all_triggers), expected.create, "fly"):
        for target in (*expected.states, "NOWHERE"):
            for epochs in (0, 1):
                yield trigger, target, epochs


def is_legal(name: str, source: str, trigger: str, target: str, epochs: int) -> bool:
    expected = EXPECTED[name]
    return (trigger, source, target) in expected.moves and epochs == int(trigger in expected.raises_epoch)
