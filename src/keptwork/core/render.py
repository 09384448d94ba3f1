"""Renders a lifecycle as a Mermaid diagram, a Markdown table, or JSON. Each has every (trigger, from, to)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from keptwork.core.decide import Lifecycle, Move, Right

ACTORS = {
    Right.HOLDER: "the lease holder",
    Right.REAPER: "the reaper after the lease expires",
    Right.OPERATOR: "an operator or policy",
}
"""Who may move a leased record, in words."""


class Row(NamedTuple):
    """One move from one state to another. `source` is None for the move that creates the record."""

    move: Move
    source: str | None


def rows(lifecycle: Lifecycle) -> Iterable[Row]:
    """Yield every (trigger, from, to) in declared order."""
    for move in lifecycle.moves:
        if move.creates:
            yield Row(move, None)
        yield from (Row(move, source.name) for source in move.sources)


def mermaid(lifecycle: Lifecycle) -> str:
    """Return the lifecycle as a Mermaid state diagram."""
    moves = (f"    {r.source or '[*]'} --> {r.move.target.name}: {r.move.trigger}" for r in rows(lifecycle))
    ends = (f"    {state.name} --> [*]" for state in lifecycle.states if state.final)
    return "\n".join(("stateDiagram-v2", *moves, *ends)) + "\n"


def markdown(lifecycle: Lifecycle) -> str:
    """Return the lifecycle as a table of its moves and a list of its states."""
    lines = ["| trigger | verb | from | to | when | event |", "|---|---|---|---|---|---|"]
    lines += (_line(_cells(row)) for row in rows(lifecycle))
    lines += ("", "States:", "")
    lines += (f"- `{state.name}`{_marks(lifecycle, state.name)}" for state in lifecycle.states)
    return "\n".join(lines) + "\n"


def as_json(lifecycle: Lifecycle) -> dict[str, Any]:
    """Return the lifecycle as the command line and the API print it."""
    return {
        "name": lifecycle.name,
        "states": [{"name": state.name, "final": state.final} for state in lifecycle.states],
        "moves": [_entry(row) for row in rows(lifecycle)],
    }


def condition(move: Move) -> str:
    """Return the condition of a move, with the actors that may make it if they are restricted."""
    actors = ", ".join(ACTORS[right] for right in Right if right in move.rights)
    return "; ".join(part for part in (move.when, actors and f"by {actors}") if part)


def destination(move: Move) -> str:
    """Return the target of a move, and whether the move voids all earlier claims."""
    return f"{move.target.name}, epoch + 1" if move.raises_epoch else move.target.name


def _entry(row: Row) -> dict[str, str | None]:
    move = row.move
    return {
        "trigger": move.trigger,
        "verb": move.verb.value,
        "from": row.source,
        "to": move.target.name,
        "event": move.event,
        "guard": move.when or None,
    }


def _cells(row: Row) -> tuple[str, ...]:
    move = row.move
    return (move.trigger, move.verb.value, row.source or "–", destination(move), condition(move), move.event)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _marks(lifecycle: Lifecycle, name: str) -> str:
    initial = " (initial)" if name == lifecycle.initial.name else ""
    return initial + (" (final)" if lifecycle.state(name).final else "")
