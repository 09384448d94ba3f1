"""Buckets: each holds so much and fills up again at so much a second. Whoever asks takes one unit, if there is one."""

from __future__ import annotations

import math

EMPTY_SOON = 1e-9


class Bucket:
    """It begins full. Times are seconds of any clock that only goes forward."""

    __slots__ = ("at", "level")

    def __init__(self, size: float, now: float) -> None:
        self.level = float(size)
        self.at = now

    def take(self, rate: float, size: float, now: float) -> bool:
        """One unit, if it is there.

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
        """What has come in since."""
        self.level = min(size, self.level + (now - self.at) * rate)
        self.at = now

    def seconds_until(self, level: float, rate: float) -> int:
        """In how many whole seconds it holds that much."""
        return max(0, math.ceil((level - self.level) / rate))
