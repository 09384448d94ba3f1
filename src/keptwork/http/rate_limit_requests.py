"""Limits of a server: the size, depth, and duration of requests, and their number."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from keptwork.access.scopes_allowance import Allowance

LARGEST_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server. Times are in seconds. A body is slightly larger than the largest payload of a job."""

    body_bytes: int = 2 << 20
    body_seconds: float = 20.0
    header_bytes: int = 32 << 10
    header_seconds: float = 10.0
    write_seconds: float = 60.0
    json_depth: int = 64
    idle_seconds: int = 30
    shutdown_seconds: int = 30
    beat_seconds: float = 15.0
    """Interval of keepalive messages on a stream, so that proxies do not close it."""
    programs: bool = False
    """Whether flows that define programs are accepted from keys with the admin scope."""
    recheck_seconds: float = 2.0
    """Interval at which a stream checks its key. Cached keys can be equally old; a revoked key must fail within 5 s."""
    allowance: Allowance = field(default_factory=Allowance)
    """The limits of a tenant without limits of its own."""
    failed_keys_per_minute: int = 600
    """Failed authentications per network and minute; 0 means unlimited."""
    row_security: Literal["auto", "require", "off"] = "auto"
    """Use of PostgreSQL row security to separate tenants in requests: if possible, required, or not at all."""
