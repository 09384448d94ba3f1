"""What a request may be: how large, how deep, how slow, what it may ask for; and how many there may be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from keptwork.allowance import Allowance

LARGEST_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a server. Times are seconds. A body is a little more than the largest payload of a job."""

    body_bytes: int = 2 << 20
    body_seconds: float = 20.0
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0
    write_seconds: float = 60.0
    json_depth: int = 64
    idle_seconds: int = 30
    shutdown_seconds: int = 30
    beat_seconds: float = 15.0
    """How often a stream says something, so that those in between see that it lives."""
    programs: bool = False
    """Whether flows that say themselves what is run are taken, from those who administer."""
    recheck_seconds: float = 2.0
    """How often a stream looks whether its key is still good. What is known of keys may be as old, and a revoked one
    dies within 5 s."""
    allowance: Allowance = field(default_factory=Allowance)
    """What a tenant may ask that has nothing else of its own."""
    failed_keys_per_minute: int = 600
    """From one address; 0 is no bound."""
    row_security: Literal["auto", "require", "off"] = "auto"
    """Whether PostgreSQL keeps tenants apart by itself in requests: if it can, or in any case, or not."""
