"""Content that is stored by its hash, and the changes that bring such content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

from keptwork.core.decide import Change

RESULT_BLOB = "result_blob"
"""The key of a change's value that holds a result too large for its row."""

_PAGE = 4096


class Blob(NamedTuple):
    """Content with its SHA-256 in hexadecimal, as sha256sum prints it.

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
        """The number of rows that it counts for in the estimate of a write's work."""
        return 1 + self.size // _PAGE

    @property
    def note(self) -> str:
        """The readable JSON that a row contains in place of the content."""
        return json.dumps({"blob": f"sha256:{self.hash}", "size": self.size})


class Artifact(NamedTuple):
    """An artifact of a job. `epoch` is that of the claim that stored it."""

    name: str
    media_type: str
    size: int
    hash: str
    epoch: int
    created_at: int


def with_blobs(changes: Iterable[Change]) -> list[tuple[Change, Blob]]:
    """Return the changes with a large result, sorted by hash. PostgreSQL locks blobs, so the order prevents
    deadlocks."""
    found = [(change, change.values[RESULT_BLOB]) for change in changes if RESULT_BLOB in change.values]
    return sorted(found, key=lambda one: one[1].hash)
