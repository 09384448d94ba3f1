"""Convert between public IDs and the entities that they name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from keptwork.core import ids
from keptwork.core.lifecycles import LIFECYCLES, WORKER, Lifecycle
from keptwork.errors import BadInput, NotFound


class Reference(NamedTuple):
    """The entity that a public ID names. Lifecycles that share a table share a prefix, so there can be several."""

    lifecycles: tuple[Lifecycle, ...]
    key: int


def lifecycle_named(name: str) -> Lifecycle:
    """Return the lifecycle with this name."""
    if name not in LIFECYCLES:
        raise BadInput(what=f"no lifecycle {name!r}; there are: {', '.join(LIFECYCLES)}")
    return LIFECYCLES[name]


def resolve(public_id: str) -> Reference:
    """Return the entity that a public ID names, whether it exists or not. Raise `NotFound` for other text."""
    prefix, key = ids.key_of(public_id.strip()) or ("", 0)
    lifecycles = tuple(lifecycle for lifecycle in LIFECYCLES.values() if lifecycle.prefix == prefix)
    if not lifecycles:
        raise unknown(public_id)
    return Reference(lifecycles, key)


def unknown(public_id: str) -> NotFound:
    """Return the error for an ID that no entity has. A mistyped ID fails its checksum."""
    return NotFound(what="entity", id=repr(public_id), listing="keptwork events list")


def states_named(lifecycle: Lifecycle, names: Sequence[str]) -> tuple[str, ...] | None:
    """Return the states that a user named, in any case and with commas if they like. Return None for all states."""
    wanted = [name.strip().upper() for text in names for name in text.split(",")]
    declared = [state.name for state in lifecycle.states]
    for name in wanted:
        if name not in declared:
            one = f"{'an' if lifecycle.name[0] in 'aeiou' else 'a'} {lifecycle.name}"
            raise BadInput(what=f"{one} is never {name!r}; it is one of: {', '.join(declared)}")
    return tuple(dict.fromkeys(wanted)) or None


@lru_cache(maxsize=10_000)
def public_id(entity: str, key: int) -> str:
    """Return the public ID of an entity. For an unknown entity in a damaged log, return its words unchanged."""
    lifecycle = LIFECYCLES.get(entity)
    try:
        return ids.public(lifecycle.prefix, key) if lifecycle else f"{entity}:{key}"
    except ValueError:
        return f"{entity}:{key}"


def actor_name(actor: str | None) -> str | None:
    """Return an actor as it is shown: a worker by its public ID, any other by its name."""
    if actor is None or not actor.startswith("w:") or not actor[2:].isdecimal():
        return actor
    return public_id(WORKER.name, int(actor[2:]))
