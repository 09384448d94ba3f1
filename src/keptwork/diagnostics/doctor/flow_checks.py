"""Checks of a whole flow: completeness, order, and progress."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.durations import rfc3339, span_us
from keptwork.core.lifecycles import Lifecycle, Verb
from keptwork.core.lifecycles.job import QUEUED
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck
from keptwork.diagnostics.doctor.flow_facts import Chart, success
from keptwork.flows import commands as flows
from keptwork.flows import engine as advance
from keptwork.flows.plan import Phase, pause_us
from keptwork.flows.steps import flow
from keptwork.flows.steps.approval import WITHDRAWN
from keptwork.flows.transaction import Row, Scene

# A flow whose steps were partly deleted.


def incomplete_check(chart: Chart) -> Iterator[Finding]:
    missing = [name for name in chart.shape.steps if name not in chart.steps]
    if chart.over or not missing:
        return
    yield Finding(
        "incomplete",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but its {'steps' if len(missing) > 1 else 'step'} {', '.join(missing[:5])} "
        f"{'are' if len(missing) > 1 else 'is'} gone",
        chart.flow["updated_at"],
        "what comes after can never begin; no move makes a step",
        None,
        f"keptwork override {chart.name} --to {chart.kind.flow.states[-1].name} --reason TEXT",
    )


INCOMPLETE = FlowCheck("incomplete", incomplete_check)


# A step of a run that is running or finished although a step before it is not.


def out_of_order_check(chart: Chart) -> Iterator[Finding]:
    if chart.kind.name != "run" or chart.over:
        return
    undone = None
    for name in chart.shape.steps:
        row = chart.own[name]
        if undone is not None and chart.phase(row) in (Phase.ACTIVE, Phase.SATISFIED):
            yield Finding(
                "out_of_order",
                chart.kind.step.name,
                row["id"],
                f"the step {name} is {row['state']}, but {undone['name']}, which comes before it, is {undone['state']}",
                row["updated_at"],
                f"what comes after it would begin too early; no move leads back to {chart.kind.step.initial.name}",
                None,
                f"keptwork override {chart.step_name(row)} --to {chart.kind.step.initial.name} --reason TEXT",
            )
        if undone is None and chart.phase(row) not in (Phase.SATISFIED, Phase.FAILED):
            undone = row


OUT_OF_ORDER = FlowCheck("out_of_order", out_of_order_check)


# A finished flow with unfinished steps or jobs.


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


# A cancelled step in an unfinished flow. The steps after it can never start.


def given_up_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        if chart.phase(row) is Phase.GONE and _matters(chart, row):
            yield Finding(
                "given_up",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, though its flow {chart.name} is {chart.flow['state']}",
                row["completed_at"],
                "the flow can neither go on nor succeed; no move leads out of that state",
                None,
                f"keptwork override {chart.step_name(row)} --to {chart.kind.step.initial.name} --reason TEXT",
            )


def _matters(chart: Chart, row: Row) -> bool:
    parent = chart.parent(row)
    return parent is None or not chart.final(parent)


GIVEN_UP = FlowCheck("given_up", given_up_check)


# A flow that has not finished although all its steps are satisfied.


def all_done(chart: Chart) -> bool:
    """Return whether every step that the definition names is satisfied."""
    return all(chart.phase(row) is Phase.SATISFIED for row in chart.own.values())


def finished_check(chart: Chart) -> Iterator[Finding]:
    if chart.over or not all_done(chart):
        return
    yield Finding(
        "finished",
        chart.kind.flow.name,
        chart.flow["id"],
        f"all its {len(chart.own)} steps are done, but it is {chart.flow['state']}",
        max(row["updated_at"] for row in chart.own.values()),
        "nothing is left that would end it",
        f"end it as {success(chart.kind)}",
    )


async def repair_finished(scene: Scene, chart: Chart, finding: Finding) -> None:
    if chart.failing:
        await flows.grant_retry(scene)
        await advance.next_round(scene)
    else:
        advance.begin_flow(scene)
        await advance.conclude(scene)


FINISHED = FlowCheck("finished", finished_check, repair_finished)


# A flow that needs a timer and has none.


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


# A flow that counts as succeeded although one of its steps did not.


def false_success_check(chart: Chart) -> Iterator[Finding]:
    if not chart.succeeded:
        return
    bad = [row for row in chart.own.values() if chart.final(row) and chart.phase(row) is not Phase.SATISFIED]
    if not bad:
        return
    verb = Verb.FAIL if chart.kind.name == "run" else Verb.CANCEL
    target = next(move.target.name for move in chart.kind.flow.moves if move.verb is verb)
    yield Finding(
        "false_success",
        chart.kind.flow.name,
        chart.flow["id"],
        f"it is {chart.flow['state']}, but its step {bad[0]['name']} is {bad[0]['state']}",
        chart.flow["completed_at"],
        "whoever relies on it relies on what was not done; no move leads out of either state",
        None,
        f"keptwork override {chart.name} --to {target} --reason TEXT",
    )


FALSE_SUCCESS = FlowCheck("false_success", false_success_check)


# A failed workstream that waits for a decision by an operator.


def blocked_check(chart: Chart) -> Iterator[Finding]:
    retried = bool(chart.kind.flow.leading_out_of(chart.flow["state"], Verb.RESUME))
    failed = [row for row in chart.own.values() if chart.phase(row) is Phase.FAILED]
    if not chart.failing or retried or not failed or chart.flow["wake_at"] is None:
        return
    behind = sum(chart.phase(row) is Phase.WAITING for row in chart.own.values())
    until = rfc3339(chart.flow["wake_at"])
    id = chart.step_name(failed[0])
    yield Finding(
        "blocked",
        chart.kind.flow.name,
        chart.flow["id"],
        f"its step {failed[0]['name']} failed ({failed[0]['error'] or 'it does not say why'}); "
        f"{behind} {'step waits' if behind == 1 else 'steps wait'} behind it",
        chart.flow["updated_at"],
        f"it is abandoned at {until} unless somebody decides",
        None,
        f"keptwork workstreams retry {chart.name}, keptwork steps reset {id}, or keptwork steps skip {id}",
    )


BLOCKED = FlowCheck("blocked", blocked_check)


# A flow without findings that has not moved for a long time.


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
