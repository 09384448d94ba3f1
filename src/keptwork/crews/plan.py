"""Decide which crews and shares get workers, and when a crew finishes. Pure: the caller passes what the store holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from keptwork.core.guards import MAX_DEPTH
from keptwork.core.lifecycles.job import JOB, SUCCEEDED

QUOTAS = (10, 8, 5, 3, 2, 1)
"""Default quotas: the maximum concurrent workers of all crews at each depth, from the outermost."""

DEPTHS = range(MAX_DEPTH + 1)


class LetGo(NamedTuple):
    """The shares that resume, and the crews that start."""

    shares: list[int]
    crews: list[int]


class Share(NamedTuple):
    """The job ID and state of a share."""

    id: int
    state: str


class Ending(NamedTuple):
    """How a crew finishes: successfully, or because a share failed. `failed` is None if a share is missing."""

    well: bool
    failed: Share | None = None


def limits(said: Mapping[int, int | None]) -> dict[int, int]:
    """Return the quota of every depth. Depths without a given quota use the default.

    >>> limits({1: 3, 2: None})
    {0: 10, 1: 3, 2: 5, 3: 3, 4: 2, 5: 1}
    """
    return {depth: said.get(depth) or QUOTAS[depth] for depth in DEPTHS}


def let_go(free: int, shares: Sequence[int], crews: Iterable[tuple[int, int]]) -> LetGo:
    """Return which shares and crews get the free workers of a depth.

    Shares come first: they have started, and others can wait for resources that they hold. Crews come in the order of
    their submission. A crew that does not fit blocks the crews behind it, so that small crews cannot starve it.

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
    """Return how a running crew finishes, from its shares and its unfinished nested crews, or None if it continues.

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
