"""Detect that the event loop is blocked, and log which job blocks it while it does.

The thread that renews the leases does the checks, because it continues while the loop is blocked. It never logs itself:
if a full pipe behind the log blocks the loop, the leases must still be renewed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextvars import Context, copy_context
from typing import Any

from keptwork.observability import logs
from keptwork.store import Job
from keptwork.workers.tracebacks import stack_of

FIRST_SECONDS = 1.0
EVERY_SECONDS = 0.25
LOOKS = 2
"""Required checks without an answer. A process that was stopped as a whole has only one when it continues."""

log = logging.getLogger("keptwork")

Running = Mapping["asyncio.Task[Any]", Job]


class Stall:
    """Checks an event loop. `running` returns the worker's jobs by their tasks. Create it on the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        running: Callable[[], Running],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._thread = threading.get_ident()
        self._running = running
        self._answered = True
        self._sent_at = 0.0
        self._looks = 0
        self._next = FIRST_SECONDS

    def look(self) -> None:
        """Request an answer from the loop, or report that the last request has none. Call it often, from another
        thread."""
        now = self._clock()
        if not self._answered:
            self._looks += 1
            self._report(now - self._sent_at)
        elif now - self._sent_at >= EVERY_SECONDS:
            self._answered, self._sent_at, self._looks, self._next = False, now, 0, FIRST_SECONDS
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        """Record the answer, on the loop."""
        if self._next > FIRST_SECONDS:
            log.warning("the event loop continues after %.1f s", self._clock() - self._sent_at)
        self._answered = True

    def _report(self, seconds: float) -> None:
        if self._looks < LOOKS or seconds < self._next:
            return
        self._next = max(seconds, FIRST_SECONDS) * 2
        stack = stack_of(sys._current_frames().get(self._thread))
        told = threading.Thread(
            target=copy_context().run,
            args=(_tell, self._culprits(), seconds, stack),
            name="keptwork-stall",
            daemon=True,
        )
        told.start()

    def _culprits(self) -> list[Job]:
        """Return the job whose task runs now. If only a task that the job created is known, return all candidates."""
        task, running = asyncio.current_task(self._loop), self._running()
        if task is None:
            return []
        if (job := running.get(task) or _job_of(task)) is not None:
            return [job]
        return list(running.values())


def _job_of(task: asyncio.Task[Any]) -> Job | None:
    """Return the job of a task's context, or None. Python 3.11 does not expose the context."""
    context: Context | None = getattr(task, "get_context", lambda: None)()
    return None if context is None else context.get(logs.job)


def _tell(jobs: list[Job], seconds: float, stack: str | None) -> None:
    names = [f"{job.kind} ({job.public_id})" for job in jobs]
    who = " or ".join(names) if len(names) <= 3 else f"one of {len(names)} jobs"
    about = logs.about(jobs[0]) if len(jobs) == 1 else {}
    extra = {"keptwork": {**about, "event": "blocked", "seconds": round(seconds, 1)}}
    message = "%s has blocked the event loop for %.1f s: the other jobs of this worker wait"
    logs.tell_traceback(log, logging.WARNING, message, who or "a callback", seconds, extra=extra, traceback=stack)
