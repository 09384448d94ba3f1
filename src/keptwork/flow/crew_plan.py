"""What follows for crews: who gets workers, and when one has ended. Pure: what is asked of the store goes in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from keptwork.lifecycle.guards import MAX_DEPTH
from keptwork.lifecycle.job import JOB, SUCCEEDED

QUOTAS = (10, 8, 5, 3, 2, 1)
"""How many workers the crews of each depth have at once, from the outermost on, unless something else was said."""

DEPTHS = range(MAX_DEPTH + 1)


class LetGo(NamedTuple):
    """The shares that go on, and the crews that start."""

    shares: list[int]
    crews: list[int]


class Share(NamedTuple):
    """A share as far as its crew is concerned: which job it is, and in what state."""

    id: int
    state: str


class Ending(NamedTuple):
    """How a crew ends: well, or because of one of its shares (none: one of them is gone)."""

    well: bool
    failed: Share | None = None


def limits(said: Mapping[int, int | None]) -> dict[int, int]:
    """The quota of every depth, by what was said of some.

    >>> limits({1: 3, 2: None})
    {0: 10, 1: 3, 2: 5, 3: 3, 4: 2, 5: 1}
    """
    return {depth: said.get(depth) or QUOTAS[depth] for depth in DEPTHS}


def let_go(free: int, shares: Sequence[int], crews: Iterable[tuple[int, int]]) -> LetGo:
    """Who gets the workers of a depth that are free. Shares come first: they have begun, and others may wait for what
    they hold. Crews come in the order they were submitted; one that does not fit holds up those behind it, so that
    small ones cannot starve it.

    >>> let_go(3, [7], [(8, 2), (9, 1)])
    LetGo(shares=[7], crews=[8])
    >>> let_go(2, [], [(8, 3), (9, 1)])
    LetGo(shares=[], crews=[])
    """
    going, starting = list(shares[: max(free, 0)]), []
    free -= len(going)
    for crew, workers in crews:
        if workers > free:
            break
        starting.append(crew)
        free -= workers
    return LetGo(going, starting)


def ending(workers: int, shares: Sequence[Share], crews_inside: int) -> Ending | None:
    """How a crew that is at work ends, by its shares and by how many crews inside it have not ended; none while it
    goes on.

    >>> ending(1, [Share(5, "succeeded")], 0), ending(1, [Share(5, "succeeded")], 1)
    (Ending(well=True, failed=None), None)
    >>> ending(2, [Share(5, "running"), Share(6, "cancelled")], 0)
    Ending(well=False, failed=Share(id=6, state='cancelled'))
    """
    failed = next((share for share in shares if _failed(share)), None)
    if failed is not None:
        return Ending(False, failed)
    if crews_inside or any(share.state != SUCCEEDED.name for share in shares):
        return None
    return Ending(len(shares) >= workers)


def _failed(share: Share) -> bool:
    return JOB.state(share.state).final and share.state != SUCCEEDED.name
