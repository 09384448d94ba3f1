"""How long things took, as counts in fixed buckets; from them, the time that a given share of them did not exceed.

A bucket is named by its bound: it holds what took longer than the bound before and no longer than its own. The bounds
double, so a percentile read from them is right to within a factor of two, and usually much closer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

BOUNDS_US = tuple(2**power for power in range(6, 41))
"""64 µs, and twice as long each time up to 12.7 days."""

BEYOND = 0
"""Names the bucket of what took longer than the longest bound."""


def bucket_of(us: int) -> int:
    """The bound of the bucket a duration belongs to.

    >>> bucket_of(64), bucket_of(65), bucket_of(1 << 50) == BEYOND
    (64, 128, True)
    """
    place = bisect_left(BOUNDS_US, us)
    return BOUNDS_US[place] if place < len(BOUNDS_US) else BEYOND


def bucket_sql(us: str) -> str:
    """The same as SQL, for an expression that is a duration; of no duration, no bucket."""
    cases = " ".join(f"WHEN {us} <= {bound} THEN {bound}" for bound in BOUNDS_US)
    return f"CASE {cases} WHEN {us} IS NOT NULL THEN {BEYOND} END"


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, and the sum of what was counted."""

    buckets: dict[int, int] = field(default_factory=dict)
    sum_us: int = 0

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def add(self, buckets: Mapping[int, int], sum_us: int) -> None:
        """Puts another histogram's counts to these."""
        for bound, count in buckets.items():
            self.buckets[bound] = self.buckets.get(bound, 0) + count
        self.sum_us += sum_us

    def cumulative(self) -> list[tuple[int, int]]:
        """How many did not exceed each bound; the last stands for no bound at all."""
        total, found = 0, []
        for bound in (*BOUNDS_US, BEYOND):
            total += self.buckets.get(bound, 0)
            found.append((bound, total))
        return found

    def quantile(self, share: float) -> float | None:
        """The time in µs that this share did not exceed, by a straight line through its bucket, as Prometheus draws it.

        What lies beyond the longest bound is shown as that bound. Nothing counted, nothing known.
        """
        rank = share * self.count
        before, lower = 0, 0
        for bound, upto in self.cumulative():
            if upto >= rank and upto > before:
                return (
                    float(BOUNDS_US[-1])
                    if bound == BEYOND
                    else _between(lower, bound, (rank - before) / (upto - before))
                )
            before, lower = upto, bound
        return None


def _between(lower: int, upper: int, share: float) -> float:
    return lower + (upper - lower) * share
