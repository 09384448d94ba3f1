"""A flow that has not finished although all its steps are satisfied."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart, success
from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Scene


def all_done(chart: Chart) -> bool:
    """Return whether every step that the definition names is satisfied."""
    return all(chart.phase(row) is Phase.SATISFIED for row in chart.own.values())


def finished_check(chart: Chart) -> Iterator[Finding]:
    if chart.over or not all_done(chart):
        return
    yield Finding(
        "finished",
        chart.kind.flow.name,
        chart.flow["id"],
        f"all its {len(chart.own)} steps are done, but it is {chart.flow['state']}",
        max(row["updated_at"] for row in chart.own.values()),
        "nothing is left that would end it",
        f"end it as {success(chart.kind)}",
    )


async def repair_finished(scene: Scene, chart: Chart, finding: Finding) -> None:
    if chart.failing:
        await flows.grant_retry(scene)
        await advance.next_round(scene)
    else:
        advance.begin_flow(scene)
        await advance.conclude(scene)


FINISHED = FlowCheck("finished", finished_check, repair_finished)
