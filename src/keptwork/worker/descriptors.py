"""Notice that handlers have left this process without file descriptors, so that another process takes its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from keptwork.store.sqlite_file import no_descriptor_left

LOOK_SECONDS = 0.5
LOOKS = 2
"""A handler may use them all for a moment."""

EXHAUSTED = "has no file descriptor left"


class Descriptors:
    """`exhausted` is called once, when none was left at several looks in a row."""

    def __init__(self, exhausted: Callable[[str], None]) -> None:
        self._exhausted = exhausted

    async def run(self) -> None:
        missed = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            missed = missed + 1 if no_descriptor_left() else 0
            if missed == LOOKS:
                self._exhausted(EXHAUSTED)
