"""The text for Prometheus, read back by the parser of its own client library."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from keptwork.core import metrics
from keptwork.core.lifecycles import JOB
from keptwork.core.metrics import METRICS
from keptwork.observability import prometheus, stats
from keptwork.store import NewJob, Store
from keptwork.store.contract.records import Counter
from tests.conformance.stage import claim, moved, settled, worker

NASTY = 'a "quoted" \\ back\nslash é'

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def parsed(store: Store) -> tuple[dict[str, str], Samples]:
    """Families by name, samples by name and labels."""
    await settled(store)
    await stats.roll_up(store)
    families = list(text_string_to_metric_families(prometheus.text(await stats.read(store, "default"))))
    samples = [sample for family in families for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples)
    return {family.name: family.type for family in families}, found


def named(name: str, samples: Samples, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


async def test_every_metric_is_there_also_of_an_empty_database(store: Store) -> None:
    families, samples = await parsed(store)
    assert families == {metric.name.removesuffix("_total"): metric.kind for metric in METRICS}
    assert samples == {}


async def test_what_was_counted_is_read_back(store: Store, other_tenant: int) -> None:
    owner = await worker(store)
    await store.enqueue([NewJob(NASTY, queue=NASTY), NewJob(NASTY, queue=NASTY), NewJob("x", tenant_id=other_tenant)])
    for job in await claim(store, owner, 1, NASTY, start=True):
        await moved(store, JOB, job.id, "succeed", by="holder")
    _, samples = await parsed(store)
    ours = {"tenant": "default"}
    assert named("keptwork_jobs", samples, queue=NASTY, state="queued", **ours) == 1
    assert named("keptwork_successes_total", samples, kind=NASTY, **ours) == 1
    move = {"entity": "job", "from": "", "to": "queued", "trigger": "enqueue"}
    assert named("keptwork_transitions_total", samples, **move, **ours) == 2
    assert named("keptwork_claim_calls_total", samples, outcome="jobs") == 1
    assert not any("other" in dict(labels).get("tenant", "") for _, labels in samples)


async def test_a_histogram_is_one_cumulative_in_seconds(store: Store) -> None:
    rows = [(64, 3), (128, 0), (1 << 20, 2), (0, 1)]
    metric = metrics.RUN_TIME
    counted = [stats_row(f"{metric.name}_bucket", metric.bucket_key(bound, "k"), n) for bound, n in rows]
    await store.count([*counted, stats_row(f"{metric.name}_sum", metric.key("k"), 2_500_001)])
    _, samples = await parsed(store)
    name, labels = metric.name, {"tenant": "default", "kind": "k"}
    bounds = {dict(found)["le"]: value for (sample, found), value in samples.items() if sample == f"{name}_bucket"}
    assert (bounds["0.000064"], bounds["0.000128"], bounds["1.048576"], bounds["+Inf"]) == (3, 3, 5, 6)
    assert list(bounds.values()) == sorted(bounds.values())
    assert [float(le) for le in bounds] == sorted(float(le) for le in bounds)
    assert named(f"{name}_count", samples, **labels) == 6
    assert named(f"{name}_sum", samples, **labels) == pytest.approx(2.500001)


def stats_row(name: str, labels: str, value: int) -> Counter:
    return Counter(1, name, labels, value)
