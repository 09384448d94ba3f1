"""What a request may be: how large, how deep, how slow."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a server. Times are seconds. A body is a little more than the largest payload of a job."""

    body_bytes: int = 2 << 20
    body_seconds: float = 20.0
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0
    json_depth: int = 64
    idle_seconds: int = 30
    shutdown_seconds: int = 30
    recheck_seconds: float = 4.0
    """How often an open stream looks whether its key is still good; a revoked one dies within 5 s."""
