"""Quotas and waits of crews."""

from __future__ import annotations

from typing import NamedTuple

from keptwork.core import ids
from keptwork.core.lifecycles import CREW

HELD_BY_QUOTA = "quota"
"""The hold of a share that waits for a crew inside its own crew, or for a worker after that wait."""

A_CREW = "crew "
"""The prefix of a wait for a crew. The crew's public ID follows it."""


class Quota(NamedTuple):
    """The quota of a depth. `most` is the maximum concurrent workers of its crews, and None means the program's
    default. `used` is the number of workers they have, and `in_line` is whether a share or crew waits for one."""

    depth: int
    most: int | None
    used: int
    in_line: bool = False


class InLine(NamedTuple):
    """What waits for workers of a depth: shares in the order in which they became ready, and crews with their worker
    counts in the order of their submission."""

    shares: list[int]
    crews: list[tuple[int, int]]


def waits_for_crew(crew: int) -> str:
    """Return the name of a job's wait for this crew."""
    return f"{A_CREW}{ids.public(CREW.prefix, crew)}"
