"""Store the progress that handlers report. Progress is for display only and affects no job.

However often handlers report, one write twice per second stores the latest report of each job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any

from keptwork.errors import StoreError
from keptwork.jobs.outcome import plain
from keptwork.outcomes import PermanentError
from keptwork.store import Job, Store
from keptwork.store.contract.checkpoints import Report

EVERY_SECONDS = 0.5
KEPT_US = 7 * 86_400_000_000
LONGEST_WORDS = 200
DIGITS = 4


def report(fraction: Any, text: str) -> str:
    """Return a progress report in its stored form. Rounding accepts a sum slightly above 1.

    >>> report(0.1 + 0.2, "pages")
    '{"fraction":0.3,"text":"pages"}'
    """
    try:
        rounded = -1.0 if isinstance(fraction, bool) else round(float(fraction), DIGITS)
    except (TypeError, ValueError):
        rounded = -1.0
    if not 0 <= rounded <= 1:  # NaN fails this check too
        raise PermanentError(f"{fraction!r} is no progress; it is a fraction of the whole, from 0 to 1")
    return json.dumps({"fraction": rounded, "text": plain(str(text))[:LONGEST_WORDS]}, separators=(",", ":"))


class Board:
    """The latest reports of a worker's jobs that are not yet written."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self._latest: dict[tuple[int, int], Report] = {}
        self._on_its_way: set[tuple[int, int]] = set()
        self._awake = False
        self._task: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    def tell(self, job: Job, payload: str) -> None:
        """Accept a report from any thread. It is written soon, unless a later report replaces it."""
        self._latest[job.id, job.epoch] = Report(job, payload)
        if not self._awake:
            self._awake = True
            with contextlib.suppress(RuntimeError):  # a thread that outlived its worker
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_now_and_then())

    async def _write_now_and_then(self) -> None:
        while self._latest:
            await self._write(list(self._latest))
            await asyncio.sleep(EVERY_SECONDS)
            self._awake = False  # first, so that a report after the next check wakes the writer again

    async def flush(self, jobs: Iterable[Job]) -> None:
        """Write the latest reports of these jobs, which are about to complete."""
        if self._latest or self._on_its_way:
            tokens = [(job.id, job.epoch) for job in jobs]
            if any(token in self._latest or token in self._on_its_way for token in tokens):
                await self._write(tokens)

    async def _write(self, tokens: list[tuple[int, int]]) -> None:
        """Write reports, one write at a time to keep their order. A report that cannot be written is dropped."""
        async with self._turn:
            reports = [told for token in tokens if (told := self._latest.pop(token, None)) is not None]
            if reports:
                self._on_its_way = {(told.job.id, told.job.epoch) for told in reports}
                with contextlib.suppress(StoreError):
                    await self._store.note_progress(reports, KEPT_US)
                self._on_its_way = set()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
