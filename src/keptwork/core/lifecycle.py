"""Checks of a lifecycle declaration, made when its module is imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from keptwork.errors import BadLifecycle

if TYPE_CHECKING:
    from keptwork.core.decide import Lifecycle, Move


def check(lifecycle: Lifecycle) -> None:
    """Raise `BadLifecycle` if a declaration contradicts itself."""
    for problem in problems(lifecycle):
        raise BadLifecycle(name=lifecycle.name, problem=problem)


def problems(lifecycle: Lifecycle) -> Iterable[str]:
    """Yield the problems of a declaration as text."""
    names = [state.name for state in lifecycle.states]
    creations = [move for move in lifecycle.moves if move.creates]
    yield from (f"state {name} is declared twice" for name in sorted({n for n in names if names.count(n) > 1}))
    if len(creations) != 1:
        yield f"it needs exactly one move that creates it, not {len(creations)}"
    for move in lifecycle.moves:
        yield from _move_problems(lifecycle, move)
    reached = _reachable(lifecycle)
    yield from (f"state {name} cannot be reached" for name in names if name not in reached)
    yield from _dead_ends(lifecycle)
    yield from _backward_moves(lifecycle)
    yield from _broken_pairs(lifecycle)


def _move_problems(lifecycle: Lifecycle, move: Move) -> Iterable[str]:
    for state in (*move.sources, move.target):
        if state not in lifecycle.states:
            yield f"{move.trigger} names the undeclared state {state.name}"
    if not move.leaves_final:
        yield from (f"{move.trigger} leaves the final state {s.name} undeclared" for s in move.sources if s.final)
    if move.trigger in lifecycle.reserved_triggers:
        yield f"the trigger {move.trigger} is taken"
    twins = [m for m in lifecycle.moves if m is not move and m.trigger == move.trigger and not m.guard]
    if not move.guard and any(set(m.sources) & set(move.sources) for m in twins):
        yield f"{move.trigger} is declared twice from one state without a guard"


def _reachable(lifecycle: Lifecycle) -> set[str]:
    reached = {move.target.name for move in lifecycle.moves if move.creates}
    while True:
        more = {m.target.name for m in lifecycle.moves if any(s.name in reached for s in m.sources)} - reached
        if not more:
            return reached
        reached |= more


def _dead_ends(lifecycle: Lifecycle) -> Iterable[str]:
    for state in lifecycle.states:
        if not state.final and not lifecycle.allowed_from(state.name):
            yield f"state {state.name} has no way out and is not final"


def _backward_moves(lifecycle: Lifecycle) -> Iterable[str]:
    """Yield moves without a new epoch that do not raise the rank. In a fenced lifecycle, (epoch, rank) only
    increases."""
    if not lifecycle.fenced:
        return
    for move in lifecycle.moves:
        for source in move.sources:
            if not move.raises_epoch and lifecycle.rank(move.target.name) <= lifecycle.rank(source.name):
                way = f"from {source.name} to {move.target.name}"
                yield f"{move.trigger} goes back {way} without raising the epoch"


def _broken_pairs(lifecycle: Lifecycle) -> Iterable[str]:
    """Yield pairs whose moves do not follow each other, and pairs with a move that raises the epoch."""
    for pair in lifecycle.pairs:
        moves = [move for trigger in pair for move in lifecycle.moves if move.trigger == trigger]
        if len(moves) != 2 or moves[0].target not in moves[1].sources or any(move.raises_epoch for move in moves):
            yield f"{' and '.join(pair)} cannot be made in one write"
