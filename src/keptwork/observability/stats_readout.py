"""Read the counters of a tenant, or of the engine, as metrics."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from keptwork.core.metrics import BUCKET, NAMED, SUM, Metric
from keptwork.core.metrics_histogram import Histogram
from keptwork.store.contract.records import Counter

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
