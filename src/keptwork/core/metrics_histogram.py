"""Histograms of durations: counts in fixed buckets, from which percentiles are estimated.

A bucket is named by its upper bound: it counts durations above the bound before and up to its own. The bounds double,
so an estimated percentile is within a factor of two of the true one, and usually much closer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

BOUNDS_US = tuple(2**power for power in range(6, 41))
"""From 64 µs, doubling up to 12.7 days."""

BEYOND = 0
"""The bucket of durations above the highest bound."""


def bucket_of(us: int) -> int:
    """Return the bound of a duration's bucket.

    >>> bucket_of(64), bucket_of(65), bucket_of(1 << 50) == BEYOND
    (64, 128, True)
    """
    place = bisect_left(BOUNDS_US, us)
    return BOUNDS_US[place] if place < len(BOUNDS_US) else BEYOND


def bucket_sql(us: str) -> str:
    """Return an SQL expression for the bucket of a duration. Null has no bucket."""
    cases = " ".join(f"WHEN {us} <= {bound} THEN {bound}" for bound in BOUNDS_US)
    return f"CASE {cases} WHEN {us} IS NOT NULL THEN {BEYOND} END"


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, and the sum of the counted durations."""

    buckets: dict[int, int] = field(default_factory=dict)
    sum_us: int = 0

    @property
    def count(self) -> int:
        return sum(self.buckets.values())

    def add(self, buckets: Mapping[int, int], sum_us: int) -> None:
        """Add the counts of another histogram."""
        for bound, count in buckets.items():
            self.buckets[bound] = self.buckets.get(bound, 0) + count
        self.sum_us += sum_us

    def cumulative(self) -> list[tuple[int, int]]:
        """Return how many durations did not exceed each bound. The last entry has no bound."""
        total, found = 0, []
        for bound in (*BOUNDS_US, BEYOND):
            total += self.buckets.get(bound, 0)
            found.append((bound, total))
        return found

    def quantile(self, share: float) -> float | None:
        """Return the duration in µs that this share did not exceed, interpolated in its bucket as in Prometheus.
        Durations above the highest bound count as that bound. Return None if nothing was counted."""
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
