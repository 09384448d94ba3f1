"""A step that runs once for each element of a list, none of which is at work."""

from __future__ import annotations

from collections.abc import Iterator

from detent.flow.phase import Phase
from detent.lifecycle import Verb
from detent.service import advance
from detent.service.doctor.chart import Chart
from detent.service.doctor.finding import Finding, FlowCheck
from detent.service.doctor.misplaced import is_misplaced
from detent.service.flow_scene import Row, Scene


def look(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held:
        return
    for row in chart.own.values():
        begun = chart.step_kind(row) == "list" and chart.phase(row) is Phase.ACTIVE and not is_misplaced(chart, row)
        if begun and all(_idle(chart, one) for one in chart.elements(row)):
            yield Finding(
                "stalled_list",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but none of its {len(chart.elements(row))} elements is",
                row["updated_at"],
                f"nothing will end it, and its flow {chart.name} waits for it",
                "let its elements go on",
            )


def _idle(chart: Chart, row: Row) -> bool:
    return row["id"] not in chart.jobs and chart.phase(row) in (Phase.SATISFIED, Phase.WAITING)


async def mend(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = next(row for row in scene.steps.values() if row["id"] == finding.id)
    advance.begin_flow(scene)
    if not chart.elements(row):
        _put_back(scene, row)
        await scene.write()
    await advance.restart(scene)


def _put_back(scene: Scene, row: Row) -> None:
    """It began without its elements: so it begins once more."""
    if scene.kind.step.leading_out_of(row["state"], Verb.RETRY):
        scene.move(row, Verb.RETRY)
    else:
        scene.move(row, Verb.FAIL)
        scene.move(row, Verb.RESET)


CHECK = FlowCheck("stalled_list", look, mend)
