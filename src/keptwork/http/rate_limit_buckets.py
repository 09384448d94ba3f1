"""Token buckets with a size and a refill rate. A caller takes one token, if there is one."""

from __future__ import annotations

import math

EMPTY_SOON = 1e-9


class Bucket:
    """A token bucket that starts full. Times are seconds of any monotonic clock."""

    __slots__ = ("at", "level")

    def __init__(self, size: float, now: float) -> None:
        self.level = float(size)
        self.at = now

    def take(self, rate: float, size: float, now: float) -> bool:
        """Take a token and return True, or return False if there is none.

        >>> bucket = Bucket(2, now=0.0)
        >>> [bucket.take(1, 2, now) for now in (0.0, 0.0, 0.0, 0.9, 1.0, 1.1)]
        [True, True, False, False, True, False]
        """
        self.fill(rate, size, now)
        if self.level < 1 - EMPTY_SOON:
            return False
        self.level -= 1
        return True

    def fill(self, rate: float, size: float, now: float) -> None:
        """Add the tokens of the time since the last call."""
        self.level = min(size, self.level + (now - self.at) * rate)
        self.at = now

    def seconds_until(self, level: float, rate: float) -> int:
        """Return the whole seconds until the bucket has this many tokens."""
        return max(0, math.ceil((level - self.level) / rate))
