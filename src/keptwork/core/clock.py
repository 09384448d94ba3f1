"""The host's time, for decisions: it never goes back and never stops.

PostgreSQL has its own clock (`keptwork_now()`); this clock serves SQLite. Tests replace it with their own.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def now(self, at_least: int = 0) -> int:
        """Return microseconds since 1970. The result is never below an earlier one, or below `at_least`."""
        ...


class HostClock:
    """The wall clock, continued by the monotonic clock while the wall clock is set back."""

    def __init__(self) -> None:
        self._base = time.time_ns() // 1000
        self._since = time.monotonic_ns() // 1000

    def now(self, at_least: int = 0) -> int:
        elapsed = time.monotonic_ns() // 1000 - self._since
        now = max(self._base + elapsed, time.time_ns() // 1000, at_least)
        if now > self._base + elapsed:
            self._base = now - elapsed
        return now


class ManualClock:
    """A clock that moves only when a test advances it.

    >>> clock = ManualClock(start=1_000); clock.advance(500); clock.now()
    1500
    """

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self._now = start

    def now(self, at_least: int = 0) -> int:
        self._now = max(self._now, at_least)
        return self._now

    def advance(self, microseconds: int) -> None:
        self._now += microseconds
