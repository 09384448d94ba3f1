"""Crews as they go into the store and come out of it, beside their rows."""

from __future__ import annotations

from typing import NamedTuple

from keptwork import ids
from keptwork.lifecycle import CREW

HELD_BY_QUOTA = "quota"
"""What holds a share back that waits for a crew inside its own, or for the worker it gave back meanwhile."""

A_CREW = "crew "
"""What a job waits for that waits for a crew: this, and the crew's public id."""


class Quota(NamedTuple):
    """A depth: how many workers its crews may have at once (none: as the program says), how many they have, and whether
    somebody is in line for one."""

    depth: int
    most: int | None
    used: int
    in_line: bool = False


class InLine(NamedTuple):
    """Who wants workers of a depth: shares that could go on, the longest first, and crews with how many each needs, in
    the order they were submitted."""

    shares: list[int]
    crews: list[tuple[int, int]]


def waits_for_crew(crew: int) -> str:
    """What a job waits for that waits for this crew."""
    return f"{A_CREW}{ids.public(CREW.prefix, crew)}"
