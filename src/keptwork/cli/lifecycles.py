"""`keptwork lifecycles`: show the declared lifecycles as text, diagrams, or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from keptwork.cli import screen
from keptwork.core import render
from keptwork.core.ids import lifecycle_named
from keptwork.core.lifecycles import LIFECYCLES, Lifecycle
from keptwork.errors import BadInput

if TYPE_CHECKING:
    from rich.console import RenderableType

app = typer.Typer()

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="One of: " + ", ".join(LIFECYCLES), autocompletion=lambda: list(LIFECYCLES)),
]


@app.command("list")
def list_(as_json: screen.Json = False) -> None:
    """List the lifecycles."""
    screen.emit([_summary(lifecycle) for lifecycle in LIFECYCLES.values()], _overview, as_json)


@app.command()
def show(
    name: Name,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid state diagram.")] = False,
    as_json: screen.Json = False,
) -> None:
    """Show the states and moves of one lifecycle."""
    lifecycle = lifecycle_named(name)
    if mermaid and as_json:
        raise BadInput(what="--mermaid and --json exclude each other")
    human = (lambda: render.mermaid(lifecycle).rstrip()) if mermaid else (lambda: _drawing(lifecycle))
    screen.emit(render.as_json(lifecycle), human, as_json)


def _summary(lifecycle: Lifecycle) -> dict[str, Any]:
    return {
        "name": lifecycle.name,
        "initial": lifecycle.initial.name,
        "states": [state.name for state in lifecycle.states],
        "final": [state.name for state in lifecycle.states if state.final],
        "triggers": list(lifecycle.triggers),
    }


def _overview() -> RenderableType:
    table = screen.table("name", "states", "final")
    for lifecycle in LIFECYCLES.values():
        summary = _summary(lifecycle)
        table.add_row(summary["name"], ", ".join(summary["states"]), ", ".join(summary["final"]) or "–")
    return table


def _drawing(lifecycle: Lifecycle) -> RenderableType:
    from rich.console import Group

    states = (f"  {state.name}{' (final)' if state.final else ''}" for state in lifecycle.states)
    title = f"{lifecycle.name}: starts as {lifecycle.initial.name}"
    return Group(title, "", _moves(lifecycle), "", "states", *states)


def _moves(lifecycle: Lifecycle) -> RenderableType:
    table = screen.table("trigger", "from", "to", "when", "event")
    for move in lifecycle.moves:
        sources = ", ".join(source.name for source in move.sources) or "–"
        table.add_row(move.trigger, sources, render.destination(move), render.condition(move) or "–", move.event)
    return table
