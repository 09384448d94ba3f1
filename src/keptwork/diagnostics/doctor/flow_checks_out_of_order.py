"""A step of a run that is running or finished although a step before it is not."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.plan_phase import Phase


def out_of_order_check(chart: Chart) -> Iterator[Finding]:
    if chart.kind.name != "run" or chart.over:
        return
    undone = None
    for name in chart.shape.steps:
        row = chart.own[name]
        if undone is not None and chart.phase(row) in (Phase.ACTIVE, Phase.SATISFIED):
            yield Finding(
                "out_of_order",
                chart.kind.step.name,
                row["id"],
                f"the step {name} is {row['state']}, but {undone['name']}, which comes before it, is {undone['state']}",
                row["updated_at"],
                f"what comes after it would begin too early; no move leads back to {chart.kind.step.initial.name}",
                None,
                f"keptwork override {chart.step_name(row)} --to {chart.kind.step.initial.name} --reason TEXT",
            )
        if undone is None and chart.phase(row) not in (Phase.SATISFIED, Phase.FAILED):
            undone = row


OUT_OF_ORDER = FlowCheck("out_of_order", out_of_order_check)
