"""A nested flow whose step does not wait for it."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import LIFECYCLES
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase, phases
from keptwork.flows.transaction import Scene


def orphan_flow_check(chart: Chart) -> Iterator[Finding]:
    if chart.over or chart.flow["step_id"] is None:
        return
    step = chart.around
    if step is None:
        told = "the step that stands for it is gone"
    elif phases(LIFECYCLES[step["lifecycle"]])[step["state"]] is not Phase.ACTIVE:
        told = f"the step {step['name']} that stands for it is {step['state']}"
    elif not chart.first_of_step:
        told = f"the step {step['name']} that stands for it waits for a later flow"
    else:
        return
    yield Finding(
        "orphan_flow",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but {told}",
        chart.flow["updated_at"],
        "it works for nothing",
        "give it up, with all that belongs to it",
    )


async def repair_orphan_flow(scene: Scene, chart: Chart, finding: Finding) -> None:
    await advance.give_up(scene, "the step that it was does not wait for it")


ORPHAN_FLOW = FlowCheck("orphan_flow", orphan_flow_check, repair_orphan_flow)
