"""Replays events: what state an entity must be in, according to its log alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from keptwork.core.decide import OVERRIDE, Lifecycle, State


@dataclass(slots=True)
class Replayed:
    """An entity rebuilt from its events, with the first problem found."""

    state: str = ""
    seq: int = 0
    epoch: int = 0
    created_at: int = 0
    updated_at: int = 0
    started_at: int | None = None
    completed_at: int | None = None
    problem: str | None = None


def replay(lifecycle: Lifecycle, events: Iterable[Mapping[str, Any]]) -> Replayed:
    """Rebuild an entity from its events, oldest first. Stop at the first event that does not fit."""
    entity, known = Replayed(), ways(lifecycle)
    for event in events:
        if not advance(known, entity, *(event[field] for field in ADVANCED_BY)):
            break
    return entity


class Way(NamedTuple):
    """The effects of a declared event on its entity, in addition to the new state."""

    epoch_step: int
    starts: bool
    ends: bool


Ways = Mapping[tuple[str | None, str, str, str], Way]
"""Every event that a lifecycle can write, by (from_state, trigger, to_state, type)."""

ADVANCED_BY = ("seq", "epoch", "type", "trigger", "ts", "from_state", "to_state")
"""The fields of an event that `advance` takes, in its order."""


@cache
def ways(lifecycle: Lifecycle) -> Ways:
    """Return every event that the log of such an entity can contain."""
    found: dict[tuple[str | None, str, str, str], Way] = {}
    for move in lifecycle.moves:
        sources: list[str | None] = [state.name for state in move.sources]
        for source in sources or [None]:
            found[source, move.trigger, move.target.name, move.event] = _way(move.target, move.raises_epoch)
    for state in lifecycle.states:
        for note in lifecycle.notes:
            found[state.name, note.trigger, state.name, note.event] = _way(state, False)
        for target in lifecycle.states:
            found[state.name, OVERRIDE, target.name, lifecycle.override_event] = _way(target, lifecycle.fenced)
    return found


def advance(
    known: Ways,
    entity: Replayed,
    seq: int,
    epoch: int,
    type: str,
    trigger: str,
    ts: int,
    from_state: str | None,
    to_state: str,
) -> bool:
    """Apply one event to the entity if it fits. Otherwise leave the entity unchanged and record the problem.

    An audit calls this for every event, so it takes plain fields and decides with one lookup.
    """
    way = known.get((from_state, trigger, to_state, type))
    if (
        way is None
        or seq != entity.seq + 1
        or (from_state or "") != entity.state
        or ts < entity.updated_at
        or epoch != entity.epoch + way.epoch_step
    ):
        drawn = f"{from_state} –{trigger}→ {to_state} ({type})"
        entity.problem = _misfit(way, entity, seq, epoch, ts, from_state, drawn)
        return False
    if from_state is None:
        entity.created_at = ts
    entity.state, entity.seq, entity.epoch, entity.updated_at = to_state, seq, epoch, ts
    if way.starts and entity.started_at is None:
        entity.started_at = ts
    if not way.ends:
        entity.completed_at = None
    elif entity.completed_at is None:
        entity.completed_at = ts
    return True


def _way(target: State, raises_epoch: bool) -> Way:
    return Way(int(raises_epoch), target.started, target.final)


def _misfit(
    way: Way | None, entity: Replayed, seq: int, epoch: int, ts: int, from_state: str | None, drawn: str
) -> str:
    if seq != entity.seq + 1:
        return f"event {entity.seq + 1} is missing: the next in the log is {seq}"
    if (from_state or "") != entity.state:
        return f"event {seq} starts from {from_state}, not from {entity.state or 'nothing'}"
    if ts < entity.updated_at:
        return f"event {seq} is older than the one before it"
    if way is None:
        return f"event {seq} is no declared move: {drawn}"
    return f"event {seq} has epoch {epoch} after {entity.epoch}"
