"""What `keptwork.toml` may say of the HTTP server: `[server]`. In words: docs/how-to/http.md."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from keptwork.access.scopes_allowance import LARGEST, NAMES, Allowance
from keptwork.flows.definition import Model

Bound = Annotated[int, Field(ge=0, le=LARGEST)]
_USUAL = Allowance()


class Server(Model):
    """The bounds of tenants that have none of their own, and of guesses at keys (0 is no bound); and whether PostgreSQL
    must keep tenants apart by itself."""

    requests_per_second: Bound = Field(
        _USUAL.requests_per_second, description="Requests of a tenant to one server process, on average."
    )
    burst: Bound = Field(_USUAL.burst, description="Requests of a tenant to one server process that may come at once.")
    max_in_flight: Bound = Field(
        _USUAL.max_in_flight, description="Requests of a tenant that are under way at one server process."
    )
    max_streams: Bound = Field(
        _USUAL.max_streams, description="Open streams and long waits of a tenant at one server process."
    )
    max_queued: Bound = Field(_USUAL.max_queued, description="Jobs of a tenant that wait, in the whole database.")
    failed_keys_per_minute: Bound = Field(600, description="Wrong keys from one address, before it is told to wait.")
    row_security: Literal["auto", "require", "off"] = Field(
        "auto",
        description="Whether PostgreSQL keeps tenants apart by itself. auto: where it can. require: else nothing is "
        "served. off: it is not asked to.",
    )

    @property
    def allowance(self) -> Allowance:
        """What each tenant may ask."""
        return Allowance(**{name: getattr(self, name) for name in NAMES})
