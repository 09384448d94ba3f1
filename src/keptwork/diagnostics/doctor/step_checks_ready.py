"""A step that could start and has no job."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Scene


def ready_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held:
        return
    for name, row in chart.own.items():
        before = [chart.own[one] for one in chart.shape.before[name]]
        waits = chart.phase(row) is Phase.WAITING and row["id"] not in chart.jobs
        if waits and all(chart.phase(one) is Phase.SATISFIED for one in before):
            yield Finding(
                "ready",
                chart.kind.step.name,
                row["id"],
                f"the step {name} is {row['state']}, waits for nothing, and has no job",
                max([row["updated_at"], *(one["updated_at"] for one in before)]),
                f"nothing will begin it, and its flow {chart.name} waits for it",
                "let it begin",
            )


async def repair_ready(scene: Scene, chart: Chart, finding: Finding) -> None:
    await advance.restart(scene)


READY = FlowCheck("ready", ready_check, repair_ready)
