"""Record every few seconds what a worker is doing, for operators. No lease depends on it."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from keptwork.core.durations import size_text
from keptwork.core.lifecycles import WORKER, Change
from keptwork.errors import StoreError
from keptwork.jobs.outcome import Raised
from keptwork.observability import logs
from keptwork.store import Job, Store
from keptwork.store.sqlite.file import no_descriptor_left
from keptwork.workers.tracebacks import traceback_of

# Count the outcomes of a worker's jobs, and log those that did not simply succeed.


log = logging.getLogger("keptwork")

USUAL = {"succeed", "snooze"}
GIVEN_BACK = "release"


class Doing(NamedTuple):
    """A worker's activity at one moment: jobs in hand, concurrency, outcomes by move, and recent jobs per second.

    `slots_replaced` counts slots that died or were lost to handlers that do not end.
    """

    in_hand: int
    concurrency: int
    outcomes: dict[str, int]
    per_second: float
    slots_replaced: int = 0

    @property
    def settled(self) -> int:
        """The number of completed jobs, without released ones."""
        return sum(count for trigger, count in self.outcomes.items() if trigger != GIVEN_BACK)


class Report:
    """The outcomes that were written."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def note(self, written: Sequence[tuple[Job, Change, Any]], late: Sequence[Change]) -> None:
        """Count and log the outcomes of these jobs, without changes that were too late."""
        done = [one for one in written if one[1] not in late] if late else written
        triggers = [change.move.trigger for _, change, _ in done]
        self.outcomes.update(triggers)
        if not USUAL.issuperset(triggers):
            self._tell(done)

    def _tell(self, written: Sequence[tuple[Job, Change, Any]]) -> None:
        for job, change, said in written:
            who, why = f"{job.public_id} ({job.kind})", change.values.get("error") or change.reason
            extra = {"keptwork": {**logs.about(job), "move": change.move.trigger}}
            failed = partial(_tell_failure, said, extra)
            match change.move.trigger:
                case "retry":
                    seconds = change.values["delay_us"] / 1_000_000
                    attempt = f"{job.attempts} of {job.max_attempts}"
                    failed(logging.INFO, "%s failed in attempt %s, again in %.1f s: %s", who, attempt, seconds, why)
                case "fail":
                    failed(logging.WARNING, "%s failed: %s", who, why)
                case "dead_letter":
                    failed(logging.WARNING, "%s is a dead letter (%s): %s", who, change.reason, why)
                case "cancel":
                    log.info("%s was cancelled: %s", who, why or "its handler said so", extra=extra)
                case "release":
                    log.info("%s was given back: %s", who, why, extra=extra)


def _tell_failure(said: Any, extra: dict[str, Any], level: int, message: str, *arguments: object) -> None:
    """Log a failed attempt with its traceback, which takes time to format and is formatted only if it is logged."""
    if log.isEnabledFor(level):
        logs.tell_traceback(log, level, message, *arguments, extra=extra, traceback=_traceback(said))


def _traceback(said: Any) -> str | None:
    if not isinstance(said, Raised):
        return None
    return said.traceback if said.text is not None else traceback_of(said.error)


BEAT_SECONDS = 10.0
KEPT_US = 3_600_000_000
KIND = "worker_heartbeat"


class Heartbeat:
    """Records the worker's activity and the memory of its process."""

    def __init__(self, store: Store, worker: int, says: Callable[[], Doing]) -> None:
        self._store = store
        self._worker = worker
        self._says = says

    async def run(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            with contextlib.suppress(StoreError):  # unreachable: the next record has the same information
                await self.run_once()

    async def run_once(self) -> None:
        doing = self._says()
        seen = json.dumps({**doing._asdict(), "settled": doing.settled, "memory_bytes": memory_bytes()})
        await self._store.record_telemetry(WORKER, self._worker, KIND, seen, ttl_us=KEPT_US)


def memory_bytes() -> int | None:
    """Return the resident memory of this process, or None if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


# Pause a worker that uses too much memory, and resume or replace it when its running jobs have finished.


LOOK_SECONDS = 1.0
EASED = 0.9
"""Fraction of the limit below which a worker resumes, so that it does not alternate."""


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


# Detect that this process has run out of file descriptors, so that another process takes its place.


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
