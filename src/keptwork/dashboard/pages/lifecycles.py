"""The declared lifecycles: which states there are, and which moves lead from one to the other."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from keptwork.dashboard.page import pages, render
from keptwork.errors import NotFound
from keptwork.http.auth import Reads
from keptwork.lifecycle import LIFECYCLES, Lifecycle
from keptwork.lifecycle import render as text

router = pages("/lifecycles")

NOWHERE = ""
"""Where what is new comes from."""


@router.get("")
async def listing(request: Request, caller: Reads) -> Response:
    """All of them."""
    return render(request, caller, "lifecycles.html", lifecycles=list(LIFECYCLES.values()))


@router.get("/{name}")
async def show(name: str, request: Request, caller: Reads) -> Response:
    """One of them: its states, what leads from which to which, and every move."""
    if name not in LIFECYCLES:
        raise NotFound(what="lifecycle", id=repr(name), listing="keptwork lifecycles list")
    found = LIFECYCLES[name]
    rows = [(row, text.condition(row.move), text.destination(row.move)) for row in text.rows(found)]
    return render(request, caller, "lifecycle.html", lifecycle=found, ways=ways(found), moves=rows)


def ways(lifecycle: Lifecycle) -> list[tuple[str, list[list[str]]]]:
    """For each state, and first for nowhere, the triggers that lead to each of the states."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in text.rows(lifecycle):
        found.setdefault((row.source or NOWHERE, row.move.target.name), []).append(row.move.trigger)
    names = [state.name for state in lifecycle.states]
    return [(source, [found.get((source, target), []) for target in names]) for source in (NOWHERE, *names)]
