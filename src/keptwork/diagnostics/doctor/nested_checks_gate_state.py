"""A run whose waiting for approval does not match its steps."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_checks_finished import all_done
from keptwork.diagnostics.doctor.flow_facts import Chart, asking_states
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Row, Scene


def gate_state_check(chart: Chart) -> Iterator[Finding]:
    if chart.kind.name != "run" or chart.over or all_done(chart):
        return
    asking, waits = _asking(chart), bool(chart.kind.flow.leading_out_of(chart.flow["state"], Verb.APPROVE))
    if asking and not waits:
        yield _finding(chart, f"its step {asking[0]['name']} waits for an answer", "let it wait with its step")
    elif waits and not asking and not any(chart.phase(row) is Phase.FAILED for row in chart.own.values()):
        yield _finding(chart, "none of its steps waits for an answer", "let it go on")


def _asking(chart: Chart) -> list[Row]:
    states = asking_states(chart.kind)
    return [row for row in chart.own.values() if row["state"] in states and chart.step_kind(row) == "approval"]


def _finding(chart: Chart, but: str, fix: str) -> Finding:
    return Finding(
        "gate_state",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but {but}",
        chart.flow["updated_at"],
        "the answer, or what comes next, would be refused",
        fix,
    )


async def repair_gate_state(scene: Scene, chart: Chart, finding: Finding) -> None:
    advance.begin_flow(scene)
    scene.move_flow(Verb.GATE if _asking(chart) else Verb.APPROVE)


GATE_STATE = FlowCheck("gate_state", gate_state_check, repair_gate_state)
