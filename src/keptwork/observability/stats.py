"""Metrics: the counters so far, and the current state."""

from __future__ import annotations

from typing import Any, NamedTuple

from keptwork.access import tenants
from keptwork.core import metrics
from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import JOB, WORKER
from keptwork.core.metrics import ENGINE
from keptwork.core.metrics_histogram import Histogram
from keptwork.jobs import breakers, limits_queues
from keptwork.observability.stats_readout import Readout
from keptwork.observability.stats_roll_up import roll_up
from keptwork.store import QueueSummary, Store
from keptwork.store.contract.breakers import BreakerView
from keptwork.store.counters import flush

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
        "queues": [limits_queues.queue_json(queue) for queue in stats.queues],
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
