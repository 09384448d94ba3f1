"""Naming entities: from a public id to what it stands for, and back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from keptwork import ids
from keptwork.errors import BadInput, NotFound
from keptwork.lifecycle import LIFECYCLES, WORKER, Lifecycle


class Reference(NamedTuple):
    """What a public id stands for. Lifecycles that share a table share a prefix, so it may be one of several."""

    lifecycles: tuple[Lifecycle, ...]
    key: int


def lifecycle_named(name: str) -> Lifecycle:
    """The lifecycle of that name."""
    if name not in LIFECYCLES:
        raise BadInput(what=f"no lifecycle {name!r}; there are: {', '.join(LIFECYCLES)}")
    return LIFECYCLES[name]


def resolve(public_id: str) -> Reference:
    """What a public id stands for, whether it exists or not; anything else is `NotFound`."""
    prefix, key = ids.key_of(public_id.strip()) or ("", 0)
    lifecycles = tuple(lifecycle for lifecycle in LIFECYCLES.values() if lifecycle.prefix == prefix)
    if not lifecycles:
        raise unknown(public_id)
    return Reference(lifecycles, key)


def unknown(public_id: str) -> NotFound:
    """That nothing has this id, which may also be mistyped: it carries a checksum."""
    return NotFound(what="entity", id=repr(public_id), listing="keptwork events list")


def states_named(lifecycle: Lifecycle, names: Sequence[str]) -> tuple[str, ...] | None:
    """The states people named, in any case and with commas if they like; none named means all."""
    wanted = [name.strip().upper() for text in names for name in text.split(",")]
    declared = [state.name for state in lifecycle.states]
    for name in wanted:
        if name not in declared:
            one = f"{'an' if lifecycle.name[0] in 'aeiou' else 'a'} {lifecycle.name}"
            raise BadInput(what=f"{one} is never {name!r}; it is one of: {', '.join(declared)}")
    return tuple(dict.fromkeys(wanted)) or None


@lru_cache(maxsize=10_000)
def public_id(entity: str, key: int) -> str:
    """The public id of an entity. A log that was tampered with may name what is none: then both words as they are."""
    lifecycle = LIFECYCLES.get(entity)
    try:
        return ids.public(lifecycle.prefix, key) if lifecycle else f"{entity}:{key}"
    except ValueError:
        return f"{entity}:{key}"


def actor_name(actor: str | None) -> str | None:
    """Who moved something, as shown: a worker by its public id, everyone else by name."""
    if actor is None or not actor.startswith("w:") or not actor[2:].isdecimal():
        return actor
    return public_id(WORKER.name, int(actor[2:]))
