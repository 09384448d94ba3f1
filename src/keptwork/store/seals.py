"""Seals of the event log: what cannot be edited any more without anyone noticing."""

from __future__ import annotations

from typing import NamedTuple


class NewSeal(NamedTuple):
    """The next seal: over so many events after a cursor, up to another; `total` is how many are sealed with them. `key`
    tells which secret went into the hash, if one did; never the secret."""

    number: int
    events: int
    total: int
    after: str | None
    upto: str
    hash: str
    key: str | None


class Seal(NamedTuple):
    """One as it is kept, with when it was made (µs)."""

    number: int
    events: int
    total: int
    after: str | None
    upto: str
    hash: str
    key: str | None
    sealed_at: int


SEAL_COLUMNS = Seal._fields
