"""A job that works for a finished step."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import JOB
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.plan_phase import Phase
from keptwork.flows.transaction import Scene


def idle_job_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        if chart.phase(row) in (Phase.WAITING, Phase.ACTIVE):
            continue
        for job in chart.jobs.get(row["id"], []):
            yield Finding(
                "idle_job",
                JOB.name,
                job.id,
                f"the job is {job.state}, but its step {row['name']} of {chart.name} is {row['state']}",
                row["updated_at"],
                "whatever comes of it changes nothing",
                "cancel the job",
            )


async def repair_idle_job(scene: Scene, chart: Chart, finding: Finding) -> None:
    job = next(job for found in chart.jobs.values() for job in found if job.id == finding.id)
    scene.cancel_job(job, "its step has ended")


IDLE_JOB = FlowCheck("idle_job", idle_job_check, repair_idle_job)
