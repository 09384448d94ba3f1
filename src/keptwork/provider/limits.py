"""How long a call may take, and how large its answer may be."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Seconds for the connection and for the whole call, whatever it does in them, and bytes for the reply."""

    connect: float = 10
    total: float = 120
    most_bytes: int = 4 << 20


USUAL = Limits()
