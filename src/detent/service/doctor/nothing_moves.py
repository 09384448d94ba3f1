"""A flow that goes on, and that nothing will ever move: no job, no timer, no open question, no flow inside it."""

from __future__ import annotations

from collections.abc import Iterator

from detent.flow.phase import Phase
from detent.service import advance
from detent.service.doctor.chart import Chart
from detent.service.doctor.finding import Finding, FlowCheck
from detent.service.flow_scene import Scene

OTHERS = ("approval", "flow", "crew")
"""Steps that something else than a job moves."""


def look(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held or chart.jobs:
        return
    if any(chart.phase(row) is Phase.ACTIVE and chart.step_kind(row) in OTHERS for row in chart.own.values()):
        return
    yield Finding(
        "nothing_moves",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but no job, no timer and no question will move it",
        chart.last_moved_at,
        "it stays as it is for ever",
        "look at all of it once more, as detent workstreams resume does",
    )


async def mend(scene: Scene, chart: Chart, finding: Finding) -> None:
    await advance.restart(scene)


CHECK = FlowCheck("nothing_moves", look, mend)
