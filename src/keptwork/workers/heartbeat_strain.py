"""Pause a worker that uses too much memory, and resume or replace it when its running jobs have finished."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
from collections.abc import Awaitable, Callable

from keptwork.core.durations_sizes import size_text
from keptwork.errors import StoreError
from keptwork.workers.heartbeat import memory_bytes

LOOK_SECONDS = 1.0
EASED = 0.9
"""Fraction of the limit below which a worker resumes, so that it does not alternate."""

log = logging.getLogger("keptwork")


class Strain:
    """Checks the memory of this process.

    `pause` and `resume` are the worker's own moves, `busy` returns whether jobs are in hand, and `replace` ends the
    worker.
    """

    def __init__(
        self,
        most_bytes: int,
        pause: Callable[[str], Awaitable[None]],
        resume: Callable[[], Awaitable[None]],
        busy: Callable[[], bool],
        replace: Callable[[str], None],
        used: Callable[[], int | None] = memory_bytes,
    ) -> None:
        self._most = most_bytes
        self._pause = pause
        self._resume = resume
        self._busy = busy
        self._replace = replace
        self._used = used
        self.strained = False

    async def run(self) -> None:
        while True:
            try:
                await self.run_once()
            except StoreError as error:
                log.warning("cannot say that this worker is paused: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def run_once(self) -> None:
        used = self._used() or 0
        if not self.strained and used > self._most:
            await self._pause(self._said(used))
            self.strained = True
            log.warning("%s: paused until what runs has ended", self._said(used))
        elif self.strained and used > self._most * EASED and not self._busy():
            give_back_memory()
            used = self._used() or 0
            if used > self._most * EASED:
                self._replace(self._said(used))
        if self.strained and used <= self._most * EASED:
            await self._resume()
            self.strained = False
            log.info("%s: going on", self._said(used))

    def _said(self, used: int) -> str:
        return f"{size_text(round(used, -6))} of memory in use, {size_text(self._most)} allowed"


def give_back_memory() -> None:
    """Return freed memory to the system, if the C library supports it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
