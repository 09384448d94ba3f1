"""A finished flow with unfinished steps or jobs."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.lifecycles import Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart, success
from keptwork.flows import engine as advance
from keptwork.flows.plan_phase import Phase
from keptwork.flows.steps import flow
from keptwork.flows.steps.approval import WITHDRAWN
from keptwork.flows.transaction import Row, Scene

REASON = "its flow had ended"


def leftovers_check(chart: Chart) -> Iterator[Finding]:
    if not chart.over:
        return
    steps = [row for row in chart.steps.values() if not chart.final(row)]
    jobs = chart.all_jobs
    if not steps and not jobs:
        return
    parts = [f"{row['name']} is {row['state']}" for row in steps[:3]]
    parts += [f"{len(steps) - 3} more have not ended"] * (len(steps) > 3)
    parts += [f"{len(jobs)} of its jobs {'has' if len(jobs) == 1 else 'have'} not ended"] * bool(jobs)
    skips = chart.succeeded and chart.kind.name == "workstream"
    amends = f"; if it did not succeed, first: keptwork override {chart.name} --to {_failed(chart)} --reason TEXT"
    yield Finding(
        "leftovers",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but {', '.join(parts)}",
        chart.flow["completed_at"],
        f"what is left of it works for nothing, or waits for ever{amends if skips else ''}",
        f"{'skip' if skips else 'give up'} what is left",
    )


def _failed(chart: Chart) -> str:
    return next(move.target.name for move in chart.kind.flow.moves if move.verb is Verb.FAIL)


async def repair_leftovers(scene: Scene, chart: Chart, finding: Finding) -> None:
    if scene.flow["state"] != success(scene.kind) or scene.kind.name == "run":
        await advance.give_up_steps(scene, REASON)
        return
    for job in chart.all_jobs:
        scene.cancel_job(job, REASON)
    for row in scene.steps.values():
        if not chart.final(row):
            await _skip(scene, chart, row)


async def _skip(scene: Scene, chart: Chart, row: Row) -> None:
    """Skip an unfinished step of a succeeded workstream, which then has succeeded without it."""
    if chart.open_gate(row) is not None:
        await scene.tx.close_gate(scene.tenant_id, row["id"], WITHDRAWN)
    if chart.unfinished_inner(row):
        await flow.give_up(scene, row, REASON)
    if scene.phase(row) is Phase.ACTIVE and not scene.kind.step.leading_out_of(row["state"], Verb.SKIP):
        scene.move(row, Verb.FAIL, REASON, error=REASON)
    scene.move(row, Verb.SKIP, REASON)


LEFTOVERS = FlowCheck("leftovers", leftovers_check, repair_leftovers)
