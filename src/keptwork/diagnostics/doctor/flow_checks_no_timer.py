"""A flow that needs a timer and has none."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.durations import span_us
from keptwork.core.lifecycles import Lifecycle, Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_checks_finished import all_done
from keptwork.diagnostics.doctor.flow_facts import Chart
from keptwork.flows import engine as advance
from keptwork.flows.plan import pause_us
from keptwork.flows.transaction import Scene


def no_timer_check(chart: Chart) -> Iterator[Finding]:
    timed = chart.failing or (chart.active and chart.shape.flow.timeout is not None)
    if chart.over or not timed or chart.flow["wake_at"] is not None or all_done(chart):
        return
    what = "abandon it" if chart.failing else "end it when it takes too long"
    if _retries(chart.kind.flow, chart.flow["state"]):
        what = "try it again"
    yield Finding(
        "no_timer",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but no timer is set that would {what}",
        chart.flow["updated_at"],
        "it stays as it is for ever",
        "set the timer",
    )


def _retries(lifecycle: Lifecycle, state: str) -> bool:
    return bool(lifecycle.leading_out_of(state, Verb.RESUME))


async def repair_no_timer(scene: Scene, chart: Chart, finding: Finding) -> None:
    now = await scene.tx.now()
    if _retries(scene.kind.flow, scene.flow["state"]):
        at = now + pause_us(max(1, scene.flow["retry_count"]))
    elif chart.failing:
        at = now + advance.patience_us(scene)
    else:
        at = max(now, scene.flow["created_at"] + span_us(chart.shape.flow.timeout or 0))
    await scene.tx.amend(scene.kind.flow, [scene.id], scene.tenant_id, wake_at=at)


NO_TIMER = FlowCheck("no_timer", no_timer_check, repair_no_timer)
