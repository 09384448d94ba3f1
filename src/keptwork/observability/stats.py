"""Metrics: the counters so far, and the current state."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keptwork.access import tenants
from keptwork.core import metrics
from keptwork.core.durations import rfc3339
from keptwork.core.guards import DEAD_LETTER_REASONS
from keptwork.core.lifecycles import BREAKER, CREW, JOB, LIFECYCLES, WORKER
from keptwork.core.lifecycles.job import RUNNING
from keptwork.core.metrics import BUCKET, ENGINE, NAMED, SUM, Histogram, Metric
from keptwork.jobs import breakers, limits
from keptwork.store import QueueSummary, Store
from keptwork.store.contract.breakers import BreakerView
from keptwork.store.contract.events_digest import MoveCount
from keptwork.store.contract.records import Counter, Progress
from keptwork.store.counters import flush

# Read the counters of a tenant, or of the engine, as metrics.


Labels = tuple[str, ...]


@dataclass(slots=True)
class Readout:
    """Counts by metric and by the values of its labels."""

    counts: defaultdict[Metric, defaultdict[Labels, int]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(int))
    )
    times: defaultdict[Metric, defaultdict[Labels, Histogram]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Histogram))
    )

    @classmethod
    def of(cls, rows: Iterable[Counter]) -> Readout:
        """Return a readout of the rows of the table.

        Counters of metrics that only a newer version knows are left out.
        """
        readout = cls()
        for row in rows:
            readout._add(row)
        return readout

    def _add(self, row: Counter) -> None:
        labels = json.loads(row.labels)
        if metric := NAMED.get(row.name):
            self.counts[metric][_values(metric, labels)] += row.value
        elif metric := NAMED.get(row.name.removesuffix(BUCKET)):
            self.times[metric][_values(metric, labels)].add({int(labels["le"]): row.value}, 0)
        elif metric := NAMED.get(row.name.removesuffix(SUM)):
            self.times[metric][_values(metric, labels)].add({}, row.value)

    def total(self, metric: Metric, **wanted: str) -> int:
        """Return the sum over all labels, or over those with these values."""
        places = {metric.labels.index(name): value for name, value in wanted.items()}
        return sum(
            count
            for labels, count in self.counts[metric].items()
            if all(labels[place] == value for place, value in places.items())
        )


def _values(metric: Metric, labels: dict[str, str]) -> Labels:
    return tuple(str(labels.get(name, "")) for name in metric.labels)


# Count the event log into the table `counters`, each event once.
#
# The database groups a part of the log. This module turns the groups into counters and writes them together with the
# position in the log, but only if no other process has counted further meanwhile. Concurrent calls can therefore do
# some work in vain, but a crash at any time loses no count and counts nothing twice. Reading the log takes no locks.
#
# It runs when metrics are requested, and must run before jobs or events are deleted, because a deleted job has no kind.


READER = "counters"
PAGE = 20_000

UNKNOWN = "unknown"
"""Kind of a job that was deleted before its events were counted."""

OTHER = "other"
"""A reason that is not declared, such as a manual edit."""

_NOTES = {(name, note.trigger) for name, lifecycle in LIFECYCLES.items() for note in lifecycle.notes}


async def roll_up(
    store: Store, *, page: int = PAGE, most: int | None = None, told: Callable[[int], None] = lambda counted: None
) -> int:
    """Count the uncounted events, or at most `most` of them in whole pages.

    Return how many were counted. `told` receives the total after each page.
    """
    total, more = 0, True
    while more and (most is None or total + page <= most):
        start = await store.log_position(READER)
        digest = await store.digest(start, page)
        more = digest.events == page
        if digest.cursor is not None:
            progress = Progress(READER, start, digest.cursor)
            if await store.count(list(counters(digest.moves)), progress=progress):
                total += digest.events
                told(total)
    return total


def counters(moves: list[MoveCount]) -> Iterator[Counter]:
    """Yield the counters of these moves. A note moves nothing and is not counted."""
    for move in moves:
        if (move.entity, move.trigger) not in _NOTES:
            yield from _of_any(move)
            if move.entity == JOB.name:
                yield from _of_job(move, move.kind or UNKNOWN)
            elif move.entity == BREAKER.name and (metric := metrics.BREAKER_MOVES.get(move.trigger)):
                yield Counter(move.tenant_id, metric.name, metric.key(move.kind or UNKNOWN), move.times)


def _of_any(move: MoveCount) -> Iterator[Counter]:
    labels = (move.entity, move.from_state or "", move.to_state, move.trigger)
    yield Counter(move.tenant_id, metrics.TRANSITIONS.name, metrics.TRANSITIONS.key(*labels), move.times)
    if move.lasted is not None and move.from_state is not None:
        yield from _time(metrics.TIME_IN_STATE, move, move.lasted, move.lasted_us, move.entity, move.from_state)


def _of_job(move: MoveCount, kind: str) -> Iterator[Counter]:
    if metric := metrics.JOB_MOVES.get(move.trigger):
        yield Counter(move.tenant_id, metric.name, metric.key(kind), move.times)
    if move.trigger == "dead_letter":
        reason = move.reason if move.reason in DEAD_LETTER_REASONS else OTHER
        yield Counter(move.tenant_id, metrics.DEAD_LETTERS.name, metrics.DEAD_LETTERS.key(kind, reason), move.times)
    if move.from_state == RUNNING.name and move.lasted is not None:
        yield from _time(metrics.RUN_TIME, move, move.lasted, move.lasted_us, kind)
    if move.waited is not None:
        yield from _time(metrics.WAIT_TIME, move, move.waited, move.waited_us, kind)


def _time(metric: Metric, move: MoveCount, bound: int, sum_us: int, *labels: str) -> Iterator[Counter]:
    yield Counter(move.tenant_id, metric.name + BUCKET, metric.bucket_key(bound, *labels), move.times)
    yield Counter(move.tenant_id, metric.name + SUM, metric.key(*labels), sum_us)


__all__ = ["KindFigures", "Stats", "as_json", "current", "kinds", "read", "roll_up"]

LATELY_US = 60_000_000


class Stats(NamedTuple):
    """The metrics of one tenant, and those of the engine that serves all tenants."""

    tenant: str
    now: int
    queues: list[QueueSummary]
    lately: dict[str, int]
    own: Readout
    engine: Readout
    workers: dict[str, int]
    breakers: list[BreakerView]

    def total(self, metric: metrics.Metric, **wanted: str) -> int:
        """Return the sum of the tenant's and the engine's counts."""
        return self.own.total(metric, **wanted) + self.engine.total(metric, **wanted)

    @property
    def hit_rate(self) -> float | None:
        """Share of requests whose idempotency key had been used before, or None without requests."""
        return share(self.total(metrics.IDEMPOTENCY, outcome="hit"), self.total(metrics.IDEMPOTENCY))


async def read(store: Store, tenant: str) -> Stats:
    """Return the stored metrics. Call `roll_up` first to count the latest part of the log."""
    await flush(store)
    tenant_id = await store.tenant(tenant)
    async with store.snapshot() as moment:
        now = await moment.now()
        return Stats(
            tenant,
            now,
            sorted(await moment.queues(tenant_id)),
            await moment.job_moves_since(tenant_id, now - LATELY_US),
            Readout.of(await moment.counters(tenant_id)),
            Readout.of(await moment.counters(ENGINE)),
            await moment.worker_states(tenant_id),
            await moment.breakers(tenant_id),
        )


async def current(store: Store, tenant_id: int, whole: Store | None = None) -> Stats:
    """Return a tenant's metrics, including the latest part of the log.

    The log has the events of all tenants. If the store is restricted to one tenant, pass the unrestricted one as
    `whole`.
    """
    await flush(whole or store)
    await roll_up(whole or store)
    return await read(store, await tenants.name_of(store, tenant_id))


class KindFigures(NamedTuple):
    """The outcomes, run times, and wait times of the jobs of one kind."""

    kind: str
    moves: dict[str, int]
    run: Histogram
    wait: Histogram

    @property
    def ended(self) -> int:
        return sum(self.moves[trigger] for trigger in ENDS)

    @property
    def success_rate(self) -> float | None:
        return share(self.moves["succeed"], self.ended)


ENDS = tuple(dict.fromkeys(move.trigger for move in JOB.moves if move.target.final))


def kinds(own: Readout) -> list[KindFigures]:
    """Return every kind of job that was counted for a tenant, by name."""
    moves = (*metrics.JOB_MOVES.values(), metrics.DEAD_LETTERS)
    names = sorted({labels[0] for metric in moves for labels in own.counts[metric]})
    return [KindFigures(name, _moves_of(own, name), *_times_of(own, name)) for name in names]


def _moves_of(own: Readout, kind: str) -> dict[str, int]:
    found = {trigger: own.counts[metric].get((kind,), 0) for trigger, metric in metrics.JOB_MOVES.items()}
    return {**found, "dead_letter": own.total(metrics.DEAD_LETTERS, kind=kind)}


def _times_of(own: Readout, kind: str) -> tuple[Histogram, Histogram]:
    run, wait = (own.times[metric].get((kind,)) or Histogram() for metric in (metrics.RUN_TIME, metrics.WAIT_TIME))
    return run, wait


def share(part: int, whole: int) -> float | None:
    """Return part divided by whole, or None if whole is 0."""
    return part / whole if whole else None


# --- JSON


def as_json(stats: Stats) -> dict[str, Any]:
    """Return every metric, with times in seconds."""
    return {
        "tenant": stats.tenant,
        "at": rfc3339(stats.now),
        "queues": [limits.queue_json(queue) for queue in stats.queues],
        "workers": {state.name: stats.workers.get(state.name, 0) for state in WORKER.states},
        "breakers": [breakers.as_json(standing) for standing in stats.breakers],
        "last_minute": stats.lately,
        "kinds": [_kind_json(kind) for kind in kinds(stats.own)],
        "dead_letters": _counted(stats, metrics.DEAD_LETTERS),
        "transitions": _counted(stats, metrics.TRANSITIONS),
        "time_in_state": [
            {**_named(metrics.TIME_IN_STATE, labels), **time_json(time)}
            for labels, time in sorted(stats.own.times[metrics.TIME_IN_STATE].items())
        ],
        "refused_transitions": _counted(stats, metrics.REFUSED),
        "idempotency": {**_outcomes(stats, metrics.IDEMPOTENCY, "hit", "miss"), "hit_rate": stats.hit_rate},
        "claim_calls": _outcomes(stats, metrics.CLAIM_CALLS, "jobs", "empty"),
        "claim_conflicts": _counted(stats, metrics.CONFLICTS),
        "lease_renewals": _outcomes(stats, metrics.RENEWALS, "kept", "lost"),
        "database_retries": stats.total(metrics.OUTAGES),
        "wakeups": stats.total(metrics.WAKEUPS),
    }


def _kind_json(kind: KindFigures) -> dict[str, Any]:
    times = {"run_seconds": time_json(kind.run), "wait_seconds": time_json(kind.wait)}
    return {"kind": kind.kind, **kind.moves, "ended": kind.ended, "success_rate": kind.success_rate, **times}


def time_json(time: Histogram) -> dict[str, Any]:
    """Return the count, mean, median, and 95th percentile of a time, in seconds."""
    figures = {"mean": share(time.sum_us, time.count), "p50": time.quantile(0.5), "p95": time.quantile(0.95)}
    return {"count": time.count, **{name: us and us / 1e6 for name, us in figures.items()}}


def _counted(stats: Stats, metric: metrics.Metric) -> list[dict[str, Any]]:
    return [{**_named(metric, labels), "count": n} for labels, n in sorted(stats.own.counts[metric].items())]


def _named(metric: metrics.Metric, labels: tuple[str, ...]) -> dict[str, str]:
    return dict(zip(metric.labels, labels, strict=True))


def _outcomes(stats: Stats, metric: metrics.Metric, *outcomes: str) -> dict[str, int]:
    return {outcome: stats.total(metric, outcome=outcome) for outcome in outcomes}


# Metrics for supervisors: the moves of workers and crews, their times, and their refusals.


SUPERVISED = (WORKER.name, CREW.name)


def figures(found: Stats) -> dict[str, Any]:
    """Return the metrics of workers and crews, and how often requests were repeated."""
    whole = as_json(found)
    kept = {
        name: [one for one in whole[source] if one["entity"] in SUPERVISED]
        for name, source in (
            ("transitions", "transitions"),
            ("time_in_state", "time_in_state"),
            ("failed_transitions", "refused_transitions"),
        )
    }
    return {"at": whole["at"], "workers": whole["workers"], **kept, "idempotency": whole["idempotency"]}
