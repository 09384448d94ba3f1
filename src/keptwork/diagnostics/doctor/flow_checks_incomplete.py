"""A flow whose steps were partly deleted."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart


def incomplete_check(chart: Chart) -> Iterator[Finding]:
    missing = [name for name in chart.shape.steps if name not in chart.steps]
    if chart.over or not missing:
        return
    yield Finding(
        "incomplete",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but its {'steps' if len(missing) > 1 else 'step'} {', '.join(missing[:5])} "
        f"{'are' if len(missing) > 1 else 'is'} gone",
        chart.flow["updated_at"],
        "what comes after can never begin; no move makes a step",
        None,
        f"keptwork override {chart.name} --to {chart.kind.flow.states[-1].name} --reason TEXT",
    )


INCOMPLETE = FlowCheck("incomplete", incomplete_check)
