"""A flow that counts as succeeded although one of its steps did not."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.plan_phase import Phase


def false_success_check(chart: Chart) -> Iterator[Finding]:
    if not chart.succeeded:
        return
    bad = [row for row in chart.own.values() if chart.final(row) and chart.phase(row) is not Phase.SATISFIED]
    if not bad:
        return
    verb = Verb.FAIL if chart.kind.name == "run" else Verb.CANCEL
    target = next(move.target.name for move in chart.kind.flow.moves if move.verb is verb)
    yield Finding(
        "false_success",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but its step {bad[0]['name']} is {bad[0]['state']}",
        chart.flow["completed_at"],
        "whoever relies on it relies on what was not done; no move leads out of either state",
        None,
        f"keptwork override {chart.name} --to {target} --reason TEXT",
    )


FALSE_SUCCESS = FlowCheck("false_success", false_success_check)
