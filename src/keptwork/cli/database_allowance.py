"""Options that set the HTTP API limits of a tenant."""

from __future__ import annotations

from typing import Annotated

import typer

from keptwork.access.scopes_allowance import LARGEST

_BOUND = {"min": 0, "max": LARGEST, "metavar": "N", "show_default": False}

RequestsPerSecond = Annotated[
    int | None, typer.Option(help="Requests per second and tenant, in each server process.", **_BOUND)
]
Burst = Annotated[int | None, typer.Option(help="Maximum burst of requests.", **_BOUND)]
MaxInFlight = Annotated[int | None, typer.Option(help="Maximum concurrent requests per tenant.", **_BOUND)]
MaxStreams = Annotated[int | None, typer.Option(help="Maximum concurrent streams and long polls per tenant.", **_BOUND)]
MaxQueued = Annotated[int | None, typer.Option(help="Maximum queued jobs per tenant (approximate).", **_BOUND)]
