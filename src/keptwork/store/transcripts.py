"""What was said in the conversation of an agent: where it stands, and by which hash its text is found."""

from __future__ import annotations

from typing import NamedTuple

from keptwork.store.blobs import Blob


class NewLine(NamedTuple):
    """A message to be kept: in which try of the job, at which place, and what."""

    round: int
    position: int
    blob: Blob


class Line(NamedTuple):
    """One that was kept, by which claim of its job and when (µs)."""

    round: int
    position: int
    hash: str
    size: int
    epoch: int
    created_at: int


LINE_COLUMNS = Line._fields
