"""A step that waits for approval without an open approval request."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.diagnostics.doctor.step_checks_misplaced import is_misplaced
from keptwork.flows.steps import approval
from keptwork.flows.transaction import Scene


def no_question_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.own.values():
        if chart.asking(row) and chart.open_gate(row) is None and not is_misplaced(chart, row):
            yield Finding(
                "no_question",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} waits for an answer, but no question is open",
                row["updated_at"],
                f"nobody can approve it, and its flow {chart.name} waits for it",
                "ask the question again",
            )


async def repair_no_question(scene: Scene, chart: Chart, finding: Finding) -> None:
    await approval.ask(scene, step_of(scene, finding))


NO_QUESTION = FlowCheck("no_question", no_question_check, repair_no_question)
