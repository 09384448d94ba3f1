"""Time and size limits of a call."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Seconds for the connection, seconds for the whole call, and bytes for the reply."""

    connect: float = 10
    total: float = 120
    most_bytes: int = 4 << 20


USUAL = Limits()
