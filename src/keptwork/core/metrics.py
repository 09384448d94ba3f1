"""Declarations of all metrics: their names, help texts, labels, and sources.

Metrics from the event log are counted from the log, exactly, whichever process made the move, at no cost to the work
itself. Metrics that only processes know are added up in each process (`store.tally`) and stored in the table
`counters`. Current values are read on request. The page of metrics in the documentation is generated from this list.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["counter", "histogram", "gauge"]
Source = Literal["log", "processes", "now"]

ENGINE = 0
"""Used in place of a tenant: a worker serves all tenants, and its own calls belong to none."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One metric. As in Prometheus, counters end in `_total`, and times are histograms in seconds."""

    name: str
    help: str
    labels: tuple[str, ...]
    kind: Kind = "counter"
    source: Source = "log"

    def key(self, *values: str) -> str:
        """Return the labels with these values, as the table `counters` stores them: JSON in the declared order."""
        return _json({**dict(zip(self.labels, values, strict=True))})

    def bucket_key(self, bound_us: int, *values: str) -> str:
        """Return the labels of one bucket of a histogram."""
        return _json({**dict(zip(self.labels, values, strict=True)), "le": bound_us})


def _json(labels: dict[str, str | int]) -> str:
    return json.dumps(labels, separators=(",", ":"), ensure_ascii=False)


# --- from the event log

TRANSITIONS = Metric(
    "keptwork_transitions_total",
    "Moves made, by pair of states; the first move of an entity comes from nowhere.",
    ("entity", "from", "to", "trigger"),
)
TIME_IN_STATE = Metric(
    "keptwork_time_in_state_seconds",
    "How long entities were in a state, counted when they leave it.",
    ("entity", "state"),
    "histogram",
)
RUN_TIME = Metric(
    "keptwork_job_run_seconds",
    "How long jobs ran, attempt by attempt, from when their worker took them and however it ended.",
    ("kind",),
    "histogram",
)
WAIT_TIME = Metric(
    "keptwork_job_wait_seconds",
    "How long jobs that were due waited for a worker; of a job that was put back, the last time.",
    ("kind",),
    "histogram",
)
DEAD_LETTERS = Metric("keptwork_dead_letters_total", "Jobs given up, by reason.", ("kind", "reason"))

JOB_MOVES = {
    "enqueue": Metric("keptwork_jobs_enqueued_total", "Jobs put into a queue.", ("kind",)),
    "claim": Metric("keptwork_claims_total", "Jobs taken by a worker.", ("kind",)),
    "succeed": Metric("keptwork_successes_total", "Jobs that succeeded.", ("kind",)),
    "fail": Metric("keptwork_failures_total", "Jobs that failed for good.", ("kind",)),
    "retry": Metric("keptwork_retries_total", "Attempts that failed and are followed by another.", ("kind",)),
    "expire": Metric("keptwork_lease_expiries_total", "Leases that ended and put their job back.", ("kind",)),
    "release": Metric("keptwork_releases_total", "Jobs given back unfinished by their worker.", ("kind",)),
    "snooze": Metric("keptwork_snoozes_total", "Jobs that asked to go on later.", ("kind",)),
    "cancel": Metric("keptwork_cancellations_total", "Jobs cancelled.", ("kind",)),
}
"""The counters of each kind of job, by trigger. `start` is not counted, because it follows `claim`; see also
`DEAD_LETTERS`."""

BREAKER_MOVES = {
    "trip": Metric("keptwork_breaker_trips_total", "Times breakers opened.", ("breaker",)),
    "probe": Metric("keptwork_breaker_probes_total", "Jobs let through to try an open breaker.", ("breaker",)),
}
"""The counters of each breaker, by trigger."""

# --- from processes

REFUSED = Metric(
    "keptwork_refused_transitions_total",
    "Moves asked for that the lifecycle does not allow.",
    ("entity", "from", "trigger"),
    source="processes",
)
IDEMPOTENCY = Metric(
    "keptwork_idempotency_lookups_total",
    "Requests that named an idempotency key: a hit was used before, a miss is the first.",
    ("door", "outcome"),
    source="processes",
)
CLAIM_CALLS = Metric(
    "keptwork_claim_calls_total", "Times workers asked for jobs: jobs or empty.", ("outcome",), source="processes"
)
CONFLICTS = Metric(
    "keptwork_claim_conflicts_total",
    "Moves that came too late and changed nothing: the lease was lost, or another was first.",
    ("entity", "trigger"),
    source="processes",
)
RENEWALS = Metric(
    "keptwork_lease_renewals_total", "Leases that workers renewed: kept or lost.", ("outcome",), source="processes"
)
OUTAGES = Metric(
    "keptwork_database_retries_total",
    "Times a worker found the database failing and tried again.",
    (),
    source="processes",
)
WAKEUPS = Metric("keptwork_wakeups_total", "Times a worker was rung for new jobs.", (), source="processes")

# --- current values

JOBS = Metric("keptwork_jobs", "Jobs by queue and state.", ("queue", "state"), "gauge", "now")

WORKERS = Metric("keptwork_workers", "Workers by state.", ("state",), "gauge", "now")

BREAKERS = Metric(
    "keptwork_breaker_state", "1 for the state that a breaker is in.", ("breaker", "state"), "gauge", "now"
)

HELD_JOBS = Metric("keptwork_breaker_held_jobs", "Jobs that a breaker holds back.", ("breaker",), "gauge", "now")

METRICS: tuple[Metric, ...] = (
    JOBS,
    WORKERS,
    BREAKERS,
    HELD_JOBS,
    *BREAKER_MOVES.values(),
    *JOB_MOVES.values(),
    DEAD_LETTERS,
    RUN_TIME,
    WAIT_TIME,
    TRANSITIONS,
    TIME_IN_STATE,
    REFUSED,
    IDEMPOTENCY,
    CLAIM_CALLS,
    CONFLICTS,
    RENEWALS,
    OUTAGES,
    WAKEUPS,
)

NAMED = {metric.name: metric for metric in METRICS}

BUCKET, SUM = "_bucket", "_sum"
"""Suffixes of a stored histogram: its counts by bound in µs (label `le`, not cumulative), and its sum in µs."""


# Histograms of durations: counts in fixed buckets, from which percentiles are estimated.
#
# A bucket is named by its upper bound: it counts durations above the bound before and up to its own. The bounds double,
# so an estimated percentile is within a factor of two of the true one, and usually much closer.


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
