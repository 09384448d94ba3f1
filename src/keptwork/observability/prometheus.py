"""Metrics in Prometheus's text format, version 0.0.4.

Metrics of a tenant have the label `tenant`; metrics of the engine do not.
"""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core import metrics
from keptwork.core.lifecycles import BREAKER
from keptwork.core.metrics import BEYOND, METRICS, Histogram, Metric
from keptwork.observability.stats import Readout, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Pairs = tuple[tuple[str, str], ...]


def text(stats: Stats) -> str:
    """Return every metric, with or without samples."""
    return "".join(f"{line}\n" for metric in METRICS for line in _family(metric, stats))


def _family(metric: Metric, stats: Stats) -> Iterator[str]:
    yield f"# HELP {metric.name} {_escaped_help(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    if metric is metrics.JOBS:
        for queue in stats.queues:
            for state, count in queue.jobs.items():
                pairs = (("tenant", stats.tenant), ("queue", queue.name), ("state", state))
                yield _sample(metric.name, pairs, str(count))
    if metric is metrics.WORKERS:
        for state, count in stats.workers.items():
            yield _sample(metric.name, (("tenant", stats.tenant), ("state", state)), str(count))
    for standing in stats.breakers:
        whose = (("tenant", stats.tenant), ("breaker", standing.row["name"]))
        if metric is metrics.BREAKERS:
            yield from (
                _sample(metric.name, (*whose, ("state", state.name)), str(int(state.name == standing.row["state"])))
                for state in BREAKER.states
            )
        if metric is metrics.HELD_JOBS:
            yield _sample(metric.name, whose, str(standing.held))
    yield from _samples(metric, stats.own, (("tenant", stats.tenant),))
    yield from _samples(metric, stats.engine, ())


def _samples(metric: Metric, readout: Readout, whose: Pairs) -> Iterator[str]:
    for labels, count in sorted(readout.counts[metric].items()):
        yield _sample(metric.name, (*whose, *zip(metric.labels, labels, strict=True)), str(count))
    for labels, time in sorted(readout.times[metric].items(), key=lambda item: item[0]):
        yield from _histogram(metric.name, (*whose, *zip(metric.labels, labels, strict=True)), time)


def _histogram(name: str, pairs: Pairs, time: Histogram) -> Iterator[str]:
    for bound, count in time.cumulative():
        yield _sample(f"{name}_bucket", (*pairs, ("le", "+Inf" if bound == BEYOND else _seconds(bound))), str(count))
    yield _sample(f"{name}_sum", pairs, _seconds(time.sum_us))
    yield _sample(f"{name}_count", pairs, str(time.count))


def _sample(name: str, pairs: Pairs, value: str) -> str:
    labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in pairs)
    return f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _seconds(us: int) -> str:
    """Return seconds exactly, with up to six decimal places."""
    return f"{us // 1_000_000}.{us % 1_000_000:06}".rstrip("0").removesuffix(".")


def _escaped(text: str) -> str:
    return _escaped_help(text).replace('"', '\\"')


def _escaped_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
