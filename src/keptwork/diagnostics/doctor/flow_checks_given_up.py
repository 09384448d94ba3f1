"""A cancelled step in an unfinished flow. The steps after it can never start."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Row


def given_up_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        if chart.phase(row) is Phase.GONE and _matters(chart, row):
            yield Finding(
                "given_up",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, though its flow {chart.name} is {chart.flow['state']}",
                row["completed_at"],
                "the flow can neither go on nor succeed; no move leads out of that state",
                None,
                f"keptwork override {chart.step_name(row)} --to {chart.kind.step.initial.name} --reason TEXT",
            )


def _matters(chart: Chart, row: Row) -> bool:
    parent = chart.parent(row)
    return parent is None or not chart.final(parent)


GIVEN_UP = FlowCheck("given_up", given_up_check)
