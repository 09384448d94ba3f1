"""The options that say what a tenant may ask of the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

from keptwork.allowance import LARGEST

_BOUND = {"min": 0, "max": LARGEST, "metavar": "N", "show_default": False}

RequestsPerSecond = Annotated[
    int | None, typer.Option(help="Requests of a tenant that a server process takes in a second.", **_BOUND)
]
Burst = Annotated[int | None, typer.Option(help="So many of them may come at once.", **_BOUND)]
MaxInFlight = Annotated[int | None, typer.Option(help="Requests of a tenant under way at once.", **_BOUND)]
MaxStreams = Annotated[int | None, typer.Option(help="Streams and long waits of a tenant at once.", **_BOUND)]
MaxQueued = Annotated[int | None, typer.Option(help="Jobs of a tenant that may wait, to about.", **_BOUND)]
