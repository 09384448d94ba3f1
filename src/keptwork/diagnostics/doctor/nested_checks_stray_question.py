"""An open approval request of a step that does not wait for approval."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.steps.approval import WITHDRAWN
from keptwork.flows.transaction import Scene


def stray_question_check(chart: Chart) -> Iterator[Finding]:
    for row in chart.own.values():
        asked = chart.open_gate(row)
        if asked is not None and not chart.asking(row):
            yield Finding(
                "stray_question",
                chart.kind.step.name,
                row["id"],
                f"the question {asked.public_id} is open, but its step {row['name']} is {row['state']}",
                asked.created_at,
                "somebody may answer what is no longer asked",
                "withdraw the question",
            )


async def repair_stray_question(scene: Scene, chart: Chart, finding: Finding) -> None:
    await scene.tx.close_gate(scene.tenant_id, finding.id, WITHDRAWN)


STRAY_QUESTION = FlowCheck("stray_question", stray_question_check, repair_stray_question)
