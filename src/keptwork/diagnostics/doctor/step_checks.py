"""Checks of single steps and of the items of a list."""

from __future__ import annotations

from collections.abc import Iterator

from keptwork.core.ids import public_id
from keptwork.core.lifecycles import JOB, Verb
from keptwork.diagnostics.doctor.finding import Finding, FlowCheck, step_of
from keptwork.diagnostics.doctor.flow_facts import Chart, asking_states
from keptwork.flows import engine as advance
from keptwork.flows import for_each
from keptwork.flows.plan import Phase
from keptwork.flows.transaction import Row, Scene
from keptwork.maintenance import reconciler

# A step in a state that belongs to other kinds of steps.


def misplaced_check(chart: Chart) -> Iterator[Finding]:
    if chart.over:
        return
    for row in chart.steps.values():
        if is_misplaced(chart, row):
            verb = _way_out(chart, row)
            initial = chart.kind.step.initial.name
            yield Finding(
                "misplaced",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, which a step of kind {chart.step_kind(row)} never is",
                row["updated_at"],
                f"what would move it does not fit, and its flow {chart.name} waits for it",
                None if verb is None else "move it on to where it belongs",
                None if verb else f"keptwork override {chart.step_name(row)} --to {initial} --reason TEXT",
            )


def is_misplaced(chart: Chart, row: Row) -> bool:
    """Return whether the state belongs to other kinds of steps."""
    asks, executed = chart.step_kind(row) == "approval", chart.executed(row)
    if chart.phase(row) is not Phase.ACTIVE:
        return False
    if chart.kind.name == "run":
        return asks != (row["state"] in asking_states(chart.kind))
    return not executed and bool(chart.kind.step.leading_out_of(row["state"], Verb.RESUME))


def _way_out(chart: Chart, row: Row) -> Verb | None:
    ways = (Verb.RESUME, Verb.RETRY)
    return next((verb for verb in ways if chart.kind.step.leading_out_of(row["state"], verb)), None)


async def repair_misplaced(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    verb = _way_out(chart, row)
    if verb is not None:
        scene.move(row, verb)


MISPLACED = FlowCheck("misplaced", misplaced_check, repair_misplaced)


# A job that works for a finished step.


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


# An unfinished item of a `for_each` step that has finished.


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


# A step that failed permanently in a flow that continues regardless.


def failed_step_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active:
        return
    for row in chart.steps.values():
        if chart.phase(row) is Phase.FAILED and _unheard(chart, row):
            yield Finding(
                "failed_step",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but its flow {chart.name} is {chart.flow['state']}",
                row["updated_at"],
                "what comes after it waits for ever, and the flow neither fails nor is tried again",
                "let the flow fail with it, and be tried again if it has retries left",
            )


def _unheard(chart: Chart, row: Row) -> bool:
    """Return whether the failure has not reached the flow. The failure of an item has, if its step has failed too."""
    parent = chart.parent(row)
    return parent is None or chart.phase(parent) in (Phase.ACTIVE, Phase.WAITING)


async def repair_failed_step(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    parent = chart.parent(row)
    advance.begin_flow(scene)
    if parent is None or scene.phase(parent) is Phase.ACTIVE:
        await advance.go_on(scene, [row])
    elif scene.kind.step.leading_out_of(row["state"], Verb.RESET):
        scene.move(row, Verb.RESET)
    else:
        advance.fail_step(scene, parent, f"{row['name']}: {row['error'] or 'it failed'}")
        await advance.go_on(scene, [parent])


FAILED_STEP = FlowCheck("failed_step", failed_step_check, repair_failed_step)


# A running step whose job has finished or was deleted.


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
    await reconciler.follow(scene, row, chart.ended.get(row["job_id"] or 0))


LOST_JOB = FlowCheck("lost_job", lost_job_check, repair_lost_job)


# A step that could start and has no job.


def ready_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held:
        return
    for name, row in chart.own.items():
        before = [chart.own[one] for one in chart.shape.before[name]]
        waits = chart.phase(row) is Phase.WAITING and row["id"] not in chart.jobs
        if waits and all(chart.phase(one) is Phase.SATISFIED for one in before):
            yield Finding(
                "ready",
                chart.kind.step.name,
                row["id"],
                f"the step {name} is {row['state']}, waits for nothing, and has no job",
                max([row["updated_at"], *(one["updated_at"] for one in before)]),
                f"nothing will begin it, and its flow {chart.name} waits for it",
                "let it begin",
            )


async def repair_ready(scene: Scene, chart: Chart, finding: Finding) -> None:
    await advance.restart(scene)


READY = FlowCheck("ready", ready_check, repair_ready)


# A `for_each` step that runs fewer items than its limit allows.


def stalled_list_check(chart: Chart) -> Iterator[Finding]:
    if not chart.active or chart.held:
        return
    for row in chart.own.values():
        begun = chart.step_kind(row) == "list" and chart.phase(row) is Phase.ACTIVE and not is_misplaced(chart, row)
        if begun and _stalls(chart, row):
            yield Finding(
                "stalled_list",
                chart.kind.step.name,
                row["id"],
                f"the step {row['name']} is {row['state']}, but too few of its {len(chart.elements(row))} elements are",
                row["updated_at"],
                f"nothing will end it, and its flow {chart.name} waits for it",
                "let its elements go on",
            )


def _stalls(chart: Chart, row: Row) -> bool:
    """Return whether items wait without a reason, or all have finished.

    Items wait without a reason if there is room or if later items have started. Failed items are another finding.
    """
    rows = chart.elements(row)
    if any(chart.phase(one) in (Phase.FAILED, Phase.GONE) for one in rows):
        return False
    for_each = chart.shape.steps[row["name"]].for_each
    waiting = [one for one in rows if not _begun(chart, one)]
    busy = sum(one["id"] in chart.jobs or chart.phase(one) is Phase.ACTIVE for one in rows)
    room = for_each is not None and busy < for_each.limit
    return not busy or bool(waiting and room) or bool(_left_out(chart, rows))


def _begun(chart: Chart, row: Row) -> bool:
    return row["id"] in chart.jobs or chart.phase(row) is not Phase.WAITING


def _left_out(chart: Chart, rows: list[Row]) -> list[Row]:
    """Return items that wait although later ones have started. A skipped item has not started."""
    begun = (one for one in rows if one["id"] in chart.jobs or one["started_at"] is not None)
    last = max((one["place"] for one in begun), default=-1)
    return [one for one in rows if not _begun(chart, one) and one["place"] < last]


async def repair_stalled_list(scene: Scene, chart: Chart, finding: Finding) -> None:
    row = step_of(scene, finding)
    advance.begin_flow(scene)
    if not chart.elements(row):
        put_back(scene, row)
    await for_each.begin(scene, row, _left_out(chart, chart.elements(row)))
    await scene.write()
    await advance.restart(scene)


def put_back(scene: Scene, row: Row) -> None:
    """Return a step that started without its items to its initial state, to start it again."""
    if scene.kind.step.leading_out_of(row["state"], Verb.RETRY):
        scene.move(row, Verb.RETRY)
    else:
        scene.move(row, Verb.FAIL)
        scene.move(row, Verb.RESET)


STALLED_LIST = FlowCheck("stalled_list", stalled_list_check, repair_stalled_list)
