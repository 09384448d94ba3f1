"""Messages of an agent's conversation: their positions, and the hashes of their text."""

from __future__ import annotations

from typing import NamedTuple

from keptwork.store.contract.checkpoints_blobs import Blob


class NewLine(NamedTuple):
    """A message to store: the attempt of the job, the position, and the content."""

    round: int
    position: int
    blob: Blob


class Line(NamedTuple):
    """A stored message, with the epoch of its claim and its creation time (µs)."""

    round: int
    position: int
    hash: str
    size: int
    epoch: int
    created_at: int


LINE_COLUMNS = Line._fields
