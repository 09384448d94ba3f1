"""Pages of the declared lifecycles: their states and moves."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from keptwork.core import render as text
from keptwork.core.lifecycles import LIFECYCLES, Lifecycle
from keptwork.dashboard.page import pages, render
from keptwork.errors import NotFound
from keptwork.http.auth import Reads

lifecycles_router = pages("/lifecycles")

NOWHERE = ""
"""The source of moves that create an entity."""


@lifecycles_router.get("")
async def listing(request: Request, caller: Reads) -> Response:
    """List all lifecycles."""
    return render(request, caller, "lifecycles.html", lifecycles=list(LIFECYCLES.values()))


@lifecycles_router.get("/{name}")
async def show(name: str, request: Request, caller: Reads) -> Response:
    """Show one lifecycle: its states, the triggers between them, and every move."""
    if name not in LIFECYCLES:
        raise NotFound(what="lifecycle", id=repr(name), listing="keptwork lifecycles list")
    found = LIFECYCLES[name]
    rows = [(row, text.condition(row.move), text.destination(row.move)) for row in text.rows(found)]
    return render(request, caller, "lifecycle.html", lifecycle=found, ways=ways(found), moves=rows)


def ways(lifecycle: Lifecycle) -> list[tuple[str, list[list[str]]]]:
    """Return the triggers from each state, and first from nowhere, to each state."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in text.rows(lifecycle):
        found.setdefault((row.source or NOWHERE, row.move.target.name), []).append(row.move.trigger)
    names = [state.name for state in lifecycle.states]
    return [(source, [found.get((source, target), []) for target in names]) for source in (NOWHERE, *names)]
