"""Content that is kept by its hash, and which changes bring some along."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from keptwork.lifecycle.machine import Change

RESULT_BLOB = "result_blob"
"""The value of a change whose result is too large for its row."""

_PAGE = 4096


class Blob(NamedTuple):
    """Some content and its SHA-256, in hexadecimal as sha256sum shows it.

    >>> Blob.of(b"abc").hash[:12]
    'ba7816bf8f01'
    """

    hash: str
    content: bytes

    @classmethod
    def of(cls, content: bytes) -> Blob:
        return cls(hashlib.sha256(content).hexdigest(), content)

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def weight(self) -> int:
        """How many rows it counts for where the work of a write is estimated."""
        return 1 + self.size // _PAGE

    @property
    def note(self) -> str:
        """What stands in a row in its place, to be read by people."""
        return json.dumps({"blob": f"sha256:{self.hash}", "size": self.size})


class Artifact(NamedTuple):
    """Something a job keeps beside its result. `epoch` is that of the claim it was kept by."""

    name: str
    media_type: str
    size: int
    hash: str
    epoch: int
    created_at: int


def with_blobs(changes: Iterable[Change]) -> list[tuple[Change, Blob]]:
    """The changes that bring a large result, in the order of hashes: PostgreSQL locks blobs, and nobody may wait in a
    circle."""
    found = [(change, change.values[RESULT_BLOB]) for change in changes if RESULT_BLOB in change.values]
    return sorted(found, key=lambda one: one[1].hash)
