"""A flow without findings that has not moved for a long time."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles.job import QUEUED
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows.plan_phase import Phase

OTHERS = ("approval", "flow", "crew")
"""Kinds of steps that are not moved by a job."""


def stuck_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held:
        return
    waits = [row for row in chart.own.values() if chart.phase(row) is Phase.ACTIVE and chart.step_kind(row) in OTHERS]
    jobs = chart.all_jobs
    busy = [job for job in jobs if job.state != QUEUED.name or job.run_at > chart.now]
    if waits or busy or chart.now - chart.last_moved_at <= chart.limits.of(chart.flow["state"]):
        return
    yield Finding(
        "stuck",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, and nothing of it has moved for a long time",
        chart.last_moved_at,
        "its jobs wait, and nobody takes them",
        None,
        f"keptwork why {chart.name}",
    )


STUCK = FlowCheck("stuck", stuck_check)
