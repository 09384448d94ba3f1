"""An unfinished item of a `for_each` step that has finished."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.transaction import Scene

REASON = "the step it belongs to has ended"


def orphan_element_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        parent = chart.parent(row)
        if parent is not None and chart.final(parent) and not chart.final(row):
            yield Finding(
                "orphan_element",
                chart.kind.step.name,
                row["id"],
                f"{row['name']} is {row['state']}, but its step {parent['name']} is {parent['state']}",
                parent["completed_at"],
                "nothing waits for it",
                "give it up, with its job",
            )


async def repair_orphan_element(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    for job in chart.jobs.get(row["id"], []):
        scene.cancel_job(job, REASON)
    scene.move(row, Verb.CANCEL, REASON)


ORPHAN_ELEMENT = FlowCheck("orphan_element", orphan_element_check, repair_orphan_element)
