"""A running step whose job has finished or was deleted."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import JOB
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.transaction import Row, Scene
from keptwork.maintenance import reconciler_lost_steps


def lost_job_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        if chart.has_lost_its_job(row):
            job = chart.ended.get(row["job_id"] or 0)
            since = row["updated_at"] if job is None else job["completed_at"]
            yield Finding(
                "lost_job",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but {_job(row, job)}",
                since,
                f"nothing will end it, and its flow {chart.name} waits for it",
                "let it fail, and its flow with it" if job is None else "let it become what its job became",
            )


def _job(row: Row, job: Row | None) -> str:
    if row["job_id"] is None:
        return "no job carries it out"
    name = public_id(JOB.name, row["job_id"])
    return f"its job {name} is gone" if job is None else f"its job {name} is {job['state']}"


async def repair_lost_job(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    await reconciler_lost_steps.follow(scene, row, chart.ended.get(row["job_id"] or 0))


LOST_JOB = FlowCheck("lost_job", lost_job_check, repair_lost_job)
