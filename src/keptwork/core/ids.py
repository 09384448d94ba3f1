"""Public IDs: a prefix and a UUIDv7, computed from the 64-bit key of a row.

A key contains its time: 41 bits of milliseconds since 2024, then 22 bits that distinguish keys of the same millisecond.
A public ID therefore needs no column and no index, sorts by time, and can be computed for an event whose entity was
deleted. The last 52 bits are a checksum, which detects a mistyped ID without a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from keptwork.core.lifecycles import LIFECYCLES, WORKER, Lifecycle
from keptwork.errors import BadInput, NotFound

EPOCH_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z
COUNTER_BITS = 22
_COUNTER_MASK = (1 << COUNTER_BITS) - 1
_WORD = (1 << 64) - 1
_NODE = (1 << 48) - 1


def first_key_of(ms: int) -> int:
    """Return the lowest key of a millisecond of Unix time."""
    return max(ms - EPOCH_MS, 0) << COUNTER_BITS


def public(prefix: str, key: int) -> str:
    """Return the public ID of a key.

    >>> public("job", first_key_of(1_760_000_000_000) + 7)
    'job_0199c82c-c000-7000-807a-a2a0b8276ff8'
    """
    ms = (key >> COUNTER_BITS) + EPOCH_MS
    counter = key & _COUNTER_MASK
    high = (ms << 16) | 0x7000 | (counter >> 10)
    low = (0b10 << 62) | ((counter & 0x3FF) << 52) | _checksum(key)
    if not 0 <= high <= _WORD:
        raise ValueError(f"{key} is no key")
    return f"{prefix}_{high >> 32:08x}-{high >> 16 & 0xFFFF:04x}-{high & 0xFFFF:04x}-{low >> 48:04x}-{low & _NODE:012x}"


def key_of(text: str) -> tuple[str, int] | None:
    """Return the prefix and key of a public ID, or None if the text is not a valid ID.

    >>> key_of("job_0199c82c-c000-7000-807a-a2a0b8276ff8") == ("job", first_key_of(1_760_000_000_000) + 7)
    True
    """
    prefix, _, tail = text.rpartition("_")
    try:
        number = UUID(tail).int
    except ValueError:
        return None
    high, low = number >> 64, number & _WORD
    counter = ((high & 0xFFF) << 10) | ((low >> 52) & 0x3FF)
    key = (((high >> 16) - EPOCH_MS) << COUNTER_BITS) | counter
    return (prefix, key) if prefix and 0 < key < 1 << 63 and public(prefix, key) == text.lower() else None


def _checksum(key: int) -> int:
    """Return 52 well-mixed bits of a key (the finalizer of splitmix64)."""
    x = (key + 0x9E3779B97F4A7C15) & _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return (x ^ (x >> 31)) >> 12


# Convert between public IDs and the entities that they name.


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
    prefix, key = key_of(public_id.strip()) or ("", 0)
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
        return public(lifecycle.prefix, key) if lifecycle else f"{entity}:{key}"
    except ValueError:
        return f"{entity}:{key}"


def actor_name(actor: str | None) -> str | None:
    """Return an actor as it is shown: a worker by its public ID, any other by its name."""
    if actor is None or not actor.startswith("w:") or not actor[2:].isdecimal():
        return actor
    return public_id(WORKER.name, int(actor[2:]))
