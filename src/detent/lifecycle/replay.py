"""Replaying events: what an entity must be, going by nothing but its log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from detent.lifecycle.machine import OVERRIDE, Lifecycle


@dataclass(slots=True)
class Replayed:
    """An entity rebuilt from its events, and the first thing that did not fit."""

    state: str = ""
    seq: int = 0
    epoch: int = 0
    created_at: int = 0
    updated_at: int = 0
    started_at: int | None = None
    completed_at: int | None = None
    problem: str | None = None


def replay(lifecycle: Lifecycle, events: Iterable[Mapping[str, Any]]) -> Replayed:
    """Rebuild an entity from its events, oldest first; stops at the first that does not fit."""
    entity = Replayed()
    for event in events:
        entity.problem = _misfit(lifecycle, entity, event)
        if entity.problem:
            break
        _follow(lifecycle, entity, event)
    return entity


def _misfit(lifecycle: Lifecycle, entity: Replayed, event: Mapping[str, Any]) -> str | None:
    if event["seq"] != entity.seq + 1:
        return f"event {entity.seq + 1} is missing: the next in the log is {event['seq']}"
    if (event["from_state"] or "") != entity.state:
        return f"event {event['seq']} starts from {event['from_state']}, not from {entity.state or 'nothing'}"
    if event["ts"] < entity.updated_at:
        return f"event {event['seq']} is older than the one before it"
    if event["type"] not in _types(lifecycle, event):
        return f"event {event['seq']} is no declared move: {_way(event)}"
    if event["epoch"] != entity.epoch + _epoch_step(lifecycle, event):
        return f"event {event['seq']} has epoch {event['epoch']} after {entity.epoch}"
    return None


def _way(event: Mapping[str, Any]) -> str:
    return f"{event['from_state']} –{event['trigger']}→ {event['to_state']} ({event['type']})"


def _types(lifecycle: Lifecycle, event: Mapping[str, Any]) -> set[str]:
    """The event types that may record this pair of states under this trigger."""
    trigger, source, target = event["trigger"], event["from_state"], event["to_state"]
    if source is None:
        creation = lifecycle.creation
        return {creation.event} if (creation.trigger, creation.target.name) == (trigger, target) else set()
    if trigger == OVERRIDE:
        return {lifecycle.override_event for state in lifecycle.states if state.name == target}
    if any(note.trigger == trigger for note in lifecycle.notes):
        return {note.event for note in lifecycle.notes if note.trigger == trigger and source == target}
    return {m.event for m in lifecycle.leading_out_of(source, trigger) if m.target.name == target}


def _epoch_step(lifecycle: Lifecycle, event: Mapping[str, Any]) -> int:
    if event["trigger"] == OVERRIDE:
        return int(lifecycle.fenced)
    return int(any(m.raises_epoch for m in lifecycle.moves if m.trigger == event["trigger"]))


def _follow(lifecycle: Lifecycle, entity: Replayed, event: Mapping[str, Any]) -> None:
    state = lifecycle.state(event["to_state"])
    if event["from_state"] is None:
        entity.created_at = event["ts"]
    entity.state, entity.seq, entity.epoch = event["to_state"], event["seq"], event["epoch"]
    entity.updated_at = event["ts"]
    if state.started and entity.started_at is None:
        entity.started_at = event["ts"]
    if not state.final:
        entity.completed_at = None
    elif entity.completed_at is None:
        entity.completed_at = event["ts"]
