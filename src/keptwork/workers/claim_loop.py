"""Measure how fast a worker completes jobs, and derive how many jobs to claim."""

from __future__ import annotations

import time

LARGEST_CLAIM = 500
LARGEST_RESERVE = 3 * LARGEST_CLAIM
RESERVE_SECONDS = 0.1
RECENT_SECONDS = 3.0
WHILE_SECONDS = 0.02


class Pace:
    """The pace of a worker with this many slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._rate = 0.0
        self._done_lately = 0
        self._noted_at = time.monotonic()

    @property
    def per_second(self) -> float:
        """The recent number of completed jobs per second, or 0 if the last one was a while ago."""
        return self._rate if time.monotonic() - self._noted_at < RECENT_SECONDS else 0.0

    def room(self, in_hand: int) -> int:
        """Return how many jobs to claim: for the free slots, plus a reserve for `RESERVE_SECONDS` at the recent rate.

        While enough jobs are in hand, return 0 until a claim is large enough to be worth it.
        """
        reserve = min(int(self._rate * RESERVE_SECONDS), LARGEST_RESERVE)
        room = self._slots + reserve - in_hand
        worthwhile = max(reserve // 3, 1) if in_hand >= self._slots else 1
        return min(room, LARGEST_CLAIM) if room >= worthwhile else 0

    def note(self, count: int) -> None:
        """Note completed jobs.

        The rate includes the time of their handlers. It is averaged over a while, because two jobs that finish together
        can each have taken long.
        """
        self._done_lately += count
        seconds = time.monotonic() - self._noted_at
        if seconds >= WHILE_SECONDS:
            self._rate += (self._done_lately / seconds - self._rate) / 4
            self._noted_at, self._done_lately = time.monotonic(), 0
