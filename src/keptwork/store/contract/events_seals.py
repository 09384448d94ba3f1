"""Seals of the event log. An edit of sealed events does not go unnoticed."""

from __future__ import annotations

from typing import NamedTuple


class NewSeal(NamedTuple):
    """The next seal, over the events after one cursor up to another. `total` is the number of events sealed so far.
    `key` identifies the secret that went into the hash, if any, and is never the secret itself."""

    number: int
    events: int
    total: int
    after: str | None
    upto: str
    hash: str
    key: str | None


class Seal(NamedTuple):
    """A stored seal with its creation time (µs)."""

    number: int
    events: int
    total: int
    after: str | None
    upto: str
    hash: str
    key: str | None
    sealed_at: int


SEAL_COLUMNS = Seal._fields
