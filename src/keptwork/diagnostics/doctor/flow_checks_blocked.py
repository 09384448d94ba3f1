"""A failed workstream that waits for a decision by an operator."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.durations import rfc3339
from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.plan_phase import Phase


def blocked_check(chart: Chart) -> Iterator[Finding]:
    retried = bool(chart.kind.flow.leading_out_of(chart.flow["state"], Verb.RESUME))
    failed = [row for row in chart.own.values() if chart.phase(row) is Phase.FAILED]
    if not chart.failing or retried or not failed or chart.flow["wake_at"] is None:
        return
    behind = sum(chart.phase(row) is Phase.WAITING for row in chart.own.values())
    until = rfc3339(chart.flow["wake_at"])
    id = chart.step_name(failed[0])
    yield Finding(
        "blocked",
        chart.kind.flow.name,
        chart.flow["id"],
        f"its step {failed[0]['name']} failed ({failed[0]['error'] or 'it does not say why'}); "
        f"{behind} {'step waits' if behind == 1 else 'steps wait'} behind it",
        chart.flow["updated_at"],
        f"it is abandoned at {until} unless somebody decides",
        None,
        f"keptwork workstreams retry {chart.name}, keptwork steps reset {id}, or keptwork steps skip {id}",
    )


BLOCKED = FlowCheck("blocked", blocked_check)
