"""A step that failed permanently in a flow that continues regardless."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Row, Scene


def failed_step_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active:
        return
    for row in chart.steps.values():
        if chart.phase(row) is Phase.FAILED and _unheard(chart, row):
            yield Finding(
                "failed_step",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but its flow {chart.name} is {chart.flow['state']}",
                row["updated_at"],
                "what comes after it waits for ever, and the flow neither fails nor is tried again",
                "let the flow fail with it, and be tried again if it has retries left",
            )


def _unheard(chart: Chart, row: Row) -> bool:
    """Return whether the failure has not reached the flow. The failure of an item has, if its step has failed too."""
    parent = chart.parent(row)
    return parent is None or chart.phase(parent) in (Phase.ACTIVE, Phase.WAITING)


async def repair_failed_step(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    parent = chart.parent(row)
    advance.begin_flow(scene)
    if parent is None or scene.phase(parent) is Phase.ACTIVE:
        await advance.go_on(scene, [row])
    elif scene.kind.step.leading_out_of(row["state"], Verb.RESET):
        scene.move(row, Verb.RESET)
    else:
        advance.fail_step(scene, parent, f"{row['name']}: {row['error'] or 'it failed'}")
        await advance.go_on(scene, [parent])


FAILED_STEP = FlowCheck("failed_step", failed_step_check, repair_failed_step)
