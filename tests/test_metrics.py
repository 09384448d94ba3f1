"""The declared metrics: names as Prometheus wants them, triggers as the lifecycle has them."""

from __future__ import annotations

import re

from keptwork.core.lifecycles import JOB
from keptwork.core.metrics import BUCKET, JOB_MOVES, METRICS, NAMED, SUM

UNCOUNTED = {"start", "dead_letter"}


def test_every_move_of_a_job_is_counted_by_its_kind() -> None:
    assert JOB_MOVES.keys() == {move.trigger for move in JOB.moves} - UNCOUNTED


def test_names_and_labels_are_fit_for_prometheus_and_told_apart() -> None:
    assert len(NAMED) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"keptwork_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.name.endswith("_seconds") == (metric.kind == "histogram")
        assert not metric.name.endswith((BUCKET, SUM))
        assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
        assert not {"le", "tenant"} & set(metric.labels)
        assert metric.help.endswith(".")


def test_labels_are_written_in_one_way_only() -> None:
    metric = NAMED["keptwork_transitions_total"]
    assert metric.key("job", "", "é", '"') == '{"entity":"job","from":"","to":"é","trigger":"\\""}'
