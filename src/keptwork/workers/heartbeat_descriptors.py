"""Detect that this process has run out of file descriptors, so that another process takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keptwork.store.sqlite.file import no_descriptor_left

DESCRIPTOR_LOOK_SECONDS = 0.5
LOOKS = 2
"""Consecutive checks that must fail, because a handler can use all descriptors for a moment."""

EXHAUSTED = "has no file descriptor left"


class Descriptors:
    """Calls `exhausted` once, when several checks in a row found no free descriptor."""

    def __init__(self, exhausted: Callable[[str], None]) -> None:
        self._exhausted = exhausted

    async def run(self) -> None:
        missed = 0
        while True:
            await asyncio.sleep(DESCRIPTOR_LOOK_SECONDS)
            missed = missed + 1 if no_descriptor_left() else 0
            if missed == LOOKS:
                self._exhausted(EXHAUSTED)
