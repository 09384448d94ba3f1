"""What `detent.toml` may say of the HTTP server: `[server]`. In words: docs/how-to/http.md."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from detent.allowance import LARGEST, NAMES, Allowance
from detent.flow.definition import Model

Bound = Annotated[int, Field(ge=0, le=LARGEST)]
_USUAL = Allowance()


class Server(Model):
    """The bounds of tenants that have none of their own, and of guesses at keys (0 is no bound); and whether PostgreSQL
    must keep tenants apart by itself."""

    requests_per_second: Bound = _USUAL.requests_per_second
    burst: Bound = _USUAL.burst
    max_in_flight: Bound = _USUAL.max_in_flight
    max_streams: Bound = _USUAL.max_streams
    max_queued: Bound = _USUAL.max_queued
    failed_keys_per_minute: Bound = 600
    row_security: Literal["auto", "require", "off"] = "auto"

    @property
    def allowance(self) -> Allowance:
        """What each tenant may ask."""
        return Allowance(**{name: getattr(self, name) for name in NAMES})
