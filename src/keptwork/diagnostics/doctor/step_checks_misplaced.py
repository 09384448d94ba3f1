"""A step in a state that belongs to other kinds of steps."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart, asking_states
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Row, Scene


def misplaced_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        if is_misplaced(chart, row):
            verb = _way_out(chart, row)
            initial = chart.kind.step.initial.name
            yield Finding(
                "misplaced",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, which a step of kind {chart.step_kind(row)} never is",
                row["updated_at"],
                f"what would move it does not fit, and its flow {chart.name} waits for it",
                None if verb is None else "move it on to where it belongs",
                None if verb else f"keptwork override {chart.step_name(row)} --to {initial} --reason TEXT",
            )


def is_misplaced(chart: Chart, row: Row) -> bool:
    """Return whether the state belongs to other kinds of steps."""
    asks, executed = chart.step_kind(row) == "approval", chart.executed(row)
    if chart.phase(row) is not Phase.ACTIVE:
        return False
    if chart.kind.name == "run":
        return asks != (row["state"] in asking_states(chart.kind))
    return not executed and bool(chart.kind.step.leading_out_of(row["state"], Verb.RESUME))


def _way_out(chart: Chart, row: Row) -> Verb | None:
    ways = (Verb.RESUME, Verb.RETRY)
    return next((verb for verb in ways if chart.kind.step.leading_out_of(row["state"], verb)), None)


async def repair_misplaced(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    verb = _way_out(chart, row)
    if verb is not None:
        scene.move(row, verb)


MISPLACED = FlowCheck("misplaced", misplaced_check, repair_misplaced)
