"""How fast a worker is, and how many jobs to ask for because of it."""

from __future__ import annotations

import time

LARGEST_CLAIM = 500
LARGEST_RESERVE = 3 * LARGEST_CLAIM
RESERVE_SECONDS = 0.1
RECENT_SECONDS = 3.0
WHILE_SECONDS = 0.02


class Pace:
    """Of a worker with so many slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._rate = 0.0
        self._done_lately = 0
        self._noted_at = time.monotonic()

    @property
    def per_second(self) -> float:
        """How many jobs a second are done of late; none when the last one is a while ago."""
        return self._rate if time.monotonic() - self._noted_at < RECENT_SECONDS else 0.0

    def room(self, in_hand: int) -> int:
        """How many jobs to ask for: for the free slots, and for a reserve of what has lately been done in a blink.
        While there is enough in hand, room gathers until a claim is worth its while."""
        reserve = min(int(self._rate * RESERVE_SECONDS), LARGEST_RESERVE)
        room = self._slots + reserve - in_hand
        worthwhile = max(reserve // 3, 1) if in_hand >= self._slots else 1
        return min(room, LARGEST_CLAIM) if room >= worthwhile else 0

    def note(self, count: int) -> None:
        """So many jobs have been settled. The rate includes the time their handlers took, and is that of a while, since
        two that end in the same moment may have taken long."""
        self._done_lately += count
        seconds = time.monotonic() - self._noted_at
        if seconds >= WHILE_SECONDS:
            self._rate += (self._done_lately / seconds - self._rate) / 4
            self._noted_at, self._done_lately = time.monotonic(), 0
