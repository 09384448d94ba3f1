"""Advance a flow: apply the outcomes of steps, and what follows, in one transaction.

    a job finishes → its step finishes → the next steps start, or the flow finishes → the step of the parent flow …

Everything here runs in the transaction of its cause, under the lock of the tree of flows, on the rows as they are then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keptwork.core.durations import span_us
from keptwork.core.lifecycles import Change, Verb
from keptwork.errors import BadInput, NotFound
from keptwork.flows import for_each, inline_batch
from keptwork.flows.compiled import KINDS
from keptwork.flows.definition import Step
from keptwork.flows.expression import Look, Wrong
from keptwork.flows.plan import NOTHING_KNOWN, Begin, Beginning, Phase, beginning, pause_us, ready, wanted_at_start
from keptwork.flows.program_output import cut_in
from keptwork.flows.steps import approval, crew, flow
from keptwork.flows.steps.kind import step_job
from keptwork.flows.transaction import Actor, Row, Scene, Seat, cost_of, flow_of
from keptwork.store.contract.checkpoints_blobs import RESULT_BLOB
from keptwork.store.contract.store import Transaction
from keptwork.webhooks import outbox


async def settled(tx: Transaction, changes: Sequence[Change], seat: Seat | None = None) -> None:
    """Advance the flows of jobs whose moves were just written in this transaction.

    If `seat` is given and exactly one step comes next, that step's job takes the worker slot.
    """
    rows = await tx.steps_by_key([change.step_id or 0 for change in changes])
    by_step = {row["id"]: row for row in rows}
    by_flow: dict[int, list[tuple[Row, Change]]] = {}
    for change in changes:
        row = by_step.get(change.step_id or 0)
        if row is not None:
            by_flow.setdefault(row["flow_id"], []).append((row, change))
    for flow_id in sorted(by_flow):
        await _settled_in(tx, by_flow[flow_id], seat)


async def crews_ended(tx: Transaction, crews: Iterable[Row], actor: Actor = Actor()) -> None:  # noqa: B008 - frozen
    """Advance the steps of crews whose end was just written in this transaction."""
    await crew.ended(tx, crews, go_on, actor)


async def _settled_in(tx: Transaction, settled: list[tuple[Row, Change]], seat: Seat | None) -> None:
    kind, flow = await flow_of(tx, settled[0][0])
    scene = await Scene.of(tx, kind, flow, Actor(settled[0][1].actor))
    scene.seat = seat
    if scene.over:
        return
    begin_flow(scene)
    scene.steps = {row["name"]: row for row, _ in settled}
    # A job's move can be sent again after a lost response. Its step has then moved already, and so has all that
    # follows.
    moved = [row for row, change in settled if await _follow(scene, row, change)]
    carried, companions = await _stretches(scene, settled, moved)
    if moved or companions:
        await go_on(scene, [*moved, *carried], companions)
    await scene.write()


async def _stretches(
    scene: Scene, settled: list[tuple[Row, Change]], moved: Sequence[Row]
) -> tuple[list[Row], list[str]]:
    """Return the batched steps that finished with these jobs, and those to start again.

    If a job's own step did not move, the steps batched with it did not finish either.
    """
    carried, companions = list[Row](), list[str]()
    await inline_batch.look_at(scene, (change for _, change in settled))
    for row, change in settled:
        if row["parent_id"] is None and scene.shape.steps[row["name"]].inline and not held(scene):
            if any(row is one for one in moved):
                done, others = await inline_batch.handed_in(scene, change)
                carried += done
            else:
                others = await inline_batch.left(scene, change)
            companions += others
    return carried, companions


async def _follow(scene: Scene, row: Row, change: Change) -> bool:
    """Move a step as the move of its job requires, and return whether it moved.

    A snoozed or released job does not move its step.
    """
    waiting, verb = scene.phase(row) is Phase.WAITING, change.move.verb
    if not waiting and (scene.phase(row) is not Phase.ACTIVE or row["job_id"] != change.id):
        return False
    error = change.values.get("error") or change.reason or f"its job was {change.move.target.name}"
    if verb in (Verb.FAIL, Verb.DEAD_LETTER, Verb.CANCEL):
        if waiting and await _has_another_job(scene, row, change):
            return False
        fail_step(scene, row, error)
    elif verb is Verb.SUCCEED and not waiting:
        blob, text = change.values.get(RESULT_BLOB), change.values.get("result")
        whole = text if blob is None else blob.content.decode()
        ago = inline_batch.ended_ago(change)
        kept = await scene.kept(whole)
        scene.move(row, Verb.SUCCEED, cut_in(whole), **kept, cost_micros=cost_of(whole), ago_us=ago)
    elif verb is Verb.RETRY and not waiting:
        _retry_step(scene, row, error)
    else:
        return False
    return True


async def _has_another_job(scene: Scene, row: Row, change: Change) -> bool:
    """Return whether another job works on the waiting step.

    If so, this job belongs to an earlier retry of the flow, and its end was handled then.
    """
    found = inline_batch.worked_on(scene.public_id, await scene.tx.unfinished_jobs(scene.tree))
    return any(name == row["name"] and job.id != change.id for name, job in found)


def _retry_step(scene: Scene, row: Row, error: str) -> None:
    """Move a step whose job will be retried.

    A workstream step fails first, and then becomes eligible for a retry. A job has more attempts than its step has
    retries, to survive crashes of workers. If the step has no retries left, the step does not move.
    """
    if scene.kind.name != "run" and row["retry_count"] >= row["max_retries"]:
        return
    if not scene.kind.step.leading_out_of(row["state"], Verb.RETRY):
        scene.move(row, Verb.FAIL, error, error=error)
    scene.move(row, Verb.RETRY, error, error=error)


def fail_step(scene: Scene, row: Row, error: str) -> None:
    """Fail a step permanently. A step that is not running must start or resume first."""
    begun = next(iter(scene.kind.step.leading_out_of(row["state"], Verb.FAIL)), None)
    if begun is None:
        scene.move(row, Verb.START if scene.phase(row) is Phase.WAITING else Verb.RESUME)
    scene.move(row, Verb.FAIL, error, error=error)


def begin_flow(scene: Scene) -> None:
    """Start a flow that is still in its initial state, because its first step has started."""
    if scene.flow["state"] == scene.kind.flow.initial.name:
        scene.move_flow(Verb.START)


async def go_on(scene: Scene, ended: Iterable[Row], companions: Sequence[str] = ()) -> None:
    """Advance a flow after steps have changed: start the next steps, or finish the flow.

    Write everything. `companions` are batched steps whose job ended without finishing them. They start again.
    """
    done, failed = await _tell_parents(scene, ended)
    if failed:
        await fail(scene, failed[0])
    elif not held(scene):
        if done:
            await let_go(scene, done)
        if companions:
            await _begin_anew(scene, companions)
    await conclude(scene)
    await scene.write(scene.seat)


def held(scene: Scene) -> bool:
    """Return whether no step may start: the flow is held, or failed and not being retried."""
    return scene.flow["held_at"] is not None or scene.own_phase is not Phase.ACTIVE


async def _tell_parents(scene: Scene, ended: Iterable[Row]) -> tuple[list[str], list[Row]]:
    """Return the names of the satisfied steps and the rows of the failed steps.

    An item of a `for_each` step counts only through that step.
    """
    rows = list(ended)
    rows += await for_each.told(scene, [row for row in rows if row["parent_id"] is not None], held(scene))
    own = {row["name"]: row for row in rows if row["parent_id"] is None}
    done = [name for name, row in own.items() if scene.phase(row) is Phase.SATISFIED]
    return done, [row for row in own.values() if scene.phase(row) is Phase.FAILED]


# --- starting


async def begin_at_roots(scene: Scene) -> None:
    """Start the steps that depend on no other step."""
    roots = scene.shape.roots
    await scene.look_at(name for name in roots if not scene.shape.steps[name].inline)
    await let_go(scene, await begin(scene, roots))
    await conclude(scene)
    await scene.write()


async def restart(scene: Scene) -> None:
    """Start every step that could run and has no job: after a hold, a retry, or a repair."""
    if not held(scene):
        await scene.look_at_all()
        working = await _worked_on(scene)
        own = {name: row for name, row in scene.steps.items() if row["parent_id"] is None}
        idle = [name for name in own if name not in working and _may_begin(scene, name)]
        skipped = await begin(scene, idle)
        for name, row in own.items():
            expanded = scene.shape.steps[name].for_each is not None and name not in idle
            going = expanded and scene.phase(row) is Phase.ACTIVE and not held(scene)
            if going and await for_each.go_on(scene, row):
                skipped.append(name)
                if scene.phase(row) is Phase.FAILED:
                    await fail(scene, row)
        await let_go(scene, skipped)
    await conclude(scene)
    await scene.write()


async def _worked_on(scene: Scene) -> set[str]:
    return {name for name, _ in inline_batch.worked_on(scene.public_id, await scene.tx.unfinished_jobs(scene.tree))}


async def _begin_anew(scene: Scene, names: Sequence[str]) -> None:
    """Start those of these steps that could run and that no job works on."""
    await scene.write()  # so that the jobs of this transaction count
    await scene.look_at({one for name in names for one in (name, *scene.shape.before[name])})
    working = await _worked_on(scene)
    idle = [name for name in dict.fromkeys(names) if name not in working and _may_begin(scene, name)]
    await let_go(scene, await begin(scene, idle))


def _may_begin(scene: Scene, name: str) -> bool:
    before = (scene.steps[one] for one in scene.shape.before[name])
    return scene.phase(scene.steps[name]) is Phase.WAITING and all(
        scene.phase(one) is Phase.SATISFIED for one in before
    )


async def next_round(scene: Scene, reason: str | None = None, since: int | None = None) -> None:
    """Retry a failed workstream: reset its failed steps, and start every step that could run.

    Its timeout counts from `since`, or from the creation of the flow if `since` is None.
    """
    if scene.kind.flow.leading_out_of(scene.flow["state"], Verb.RETRY):
        scene.move_flow(Verb.RETRY, reason, wake_at=None)
    timeout = scene.shape.flow.timeout
    scene.move_flow(
        Verb.RESUME, reason, wake_at=None if timeout is None else (since or scene.flow["created_at"]) + span_us(timeout)
    )
    await scene.look_at_all()
    for step in scene.steps.values():
        if scene.phase(step) is Phase.FAILED:
            scene.move(step, Verb.RESET, reason)
    await scene.write()
    await restart(scene)


async def let_go(scene: Scene, ended: Sequence[str]) -> None:
    """Start the steps that follow these steps, and those that follow skipped steps."""
    while ended:
        await scene.look_at(scene.shape.around(ended))
        ended = await begin(scene, ready(scene.shape, scene.by_phase, ended))


async def begin(scene: Scene, names: Iterable[str]) -> list[str]:
    """Start these steps, and return the names of those that are satisfied already.

    A skipped step is satisfied.
    """
    skipped, inline = [], []
    for name in names:
        step = scene.shape.steps[name]
        if step.inline and step.when is None:
            inline.append(name)
            continue
        if held(scene):
            break  # a step could not start, so the flow has failed
        how = beginning(step, await _known_at_start(scene, step) if step.conditional else NOTHING_KNOWN)
        if step.inline and how.how is Begin.JOB:
            inline.append(name)
            continue
        await scene.look_at([name])
        row = scene.steps[name]
        if how.how is Begin.SKIP:
            scene.move(row, Verb.SKIP, how.why)
            skipped.append(name)
        elif how.how is Begin.JOB:
            scene.jobs.append(step_job(scene, row, step))
        elif await _begin_without_job(scene, row, how):
            skipped.append(name)
    if inline and not held(scene):
        await scene.look_at(inline_batch.firsts(scene, inline))
        inline_batch.begin(scene, inline, scene.steps)
    return skipped


async def _known_at_start(scene: Scene, step: Step) -> Look:
    return await scene.values(wanted_at_start(step), cut=step.takes_cut)


async def _begin_without_job(scene: Scene, row: Row, how: Beginning) -> bool:
    """Start a step that no worker runs, and return whether it is satisfied already."""
    begin_flow(scene)
    match how.how:
        case Begin.GATE:
            await _begin_gate(scene, row)
        case Begin.SUBFLOW:
            return await _begin_subflow(scene, row)
        case Begin.CREW:
            if error := await crew.muster(scene, row):
                fail_step(scene, row, error)
                await fail(scene, row)
        case Begin.EXPAND:
            over = await for_each.expand(scene, row, how.items)
            if scene.phase(row) is Phase.FAILED:
                await fail(scene, row)
            return over and scene.phase(row) is Phase.SATISFIED
        case Begin.FAIL:
            fail_step(scene, row, how.why)
            await fail(scene, row)
    return False


async def _begin_gate(scene: Scene, row: Row) -> None:
    try:
        await approval.open_gate(scene, row)
    except Wrong as error:
        fail_step(scene, row, str(error))
        await fail(scene, row)


async def _begin_subflow(scene: Scene, row: Row) -> bool:
    """Start a nested flow, and return whether its step is satisfied already.

    A flow that cannot start fails the step.
    """
    try:
        start = await flow.chosen(scene, row)
    except (BadInput, NotFound, Wrong) as error:
        fail_step(scene, row, str(error))
        await fail(scene, row)
        return False
    scene.move(row, Verb.START)
    over = await flow.start(scene, row, start)
    if scene.phase(row) is Phase.FAILED:
        await fail(scene, row)
    return over and scene.phase(row) is Phase.SATISFIED


# --- finishing


async def fail(scene: Scene, step: Row) -> None:
    """Fail a flow because a step failed permanently. No further steps start; a workstream might be retried."""
    if scene.own_phase is not Phase.ACTIVE:
        return
    gone = f"it is {step['state']}, and nothing leads on from there" if scene.phase(step) is Phase.GONE else None
    error = f"{step['name']}: {gone or step['error'] or step['reason'] or 'it failed'}"
    scene.jobs.clear()  # jobs that were about to be enqueued
    begin_flow(scene)
    await withdraw(scene, "its flow failed")
    if scene.kind.name == "run":
        scene.move_flow(Verb.FAIL, error, error=error)
        return
    now = await scene.tx.now()
    if scene.flow["retry_count"] < scene.flow["max_retries"]:
        scene.move_flow(Verb.FAIL, error, error=error, wake_at=None)
        scene.move_flow(Verb.RETRY, wake_at=now + pause_us(scene.flow["retry_count"] + 1))
        return
    patience = patience_us(scene)
    scene.move_flow(Verb.FAIL, error, error=error, wake_at=now + patience)
    if not patience:
        await give_up(scene, "its steps failed, and nobody is to wait for an operator")


async def time_out(scene: Scene) -> None:
    """End a flow that exceeded its timeout, with everything inside it."""
    error = f"it took longer than {scene.shape.flow.timeout}"
    if scene.kind.name == "run":
        begin_flow(scene)
        await give_up_steps(scene, error)
        scene.move_flow(Verb.FAIL, error, error=error)
    else:
        await give_up(scene, error)
    await conclude(scene)


def patience_us(scene: Scene) -> int:
    """Return how long a failed workstream waits for an operator.

    A nested workstream does not wait, unless its definition sets `abandon_after`.
    """
    definition = scene.shape.flow
    if scene.flow["step_id"] is not None and "abandon_after" not in definition.model_fields_set:
        return 0
    return span_us(definition.abandon_after)


async def withdraw(scene: Scene, reason: str) -> None:
    """Cancel the jobs that no worker has started. Their steps can start later with new jobs."""
    scene.jobs.clear()
    await scene.look_at_all()
    waiting = {step["id"] for step in scene.steps.values() if scene.phase(step) is Phase.WAITING}
    for job in await scene.tx.unfinished_jobs(scene.tree):
        if job.step_id in waiting and not job.attempts:
            scene.cancel_job(job, reason)


async def give_up(scene: Scene, reason: str) -> None:
    """Cancel a run or abandon a workstream, with everything inside it.

    That is every step, job, approval request, and flow.
    """
    await give_up_steps(scene, reason)
    scene.move_flow(Verb.CANCEL, reason)


async def give_up_steps(scene: Scene, reason: str) -> None:
    """Cancel every step, job, approval request, and flow inside a flow."""
    await scene.write()
    await scene.look_at_all()
    mine = {step["id"]: step for step in scene.steps.values()}
    for job in await scene.tx.unfinished_jobs(scene.tree):
        if job.step_id in mine:
            scene.cancel_job(job, reason)
    for step in scene.steps.values():
        if not scene.kind.step.state(step["state"]).final:
            await give_up_step(scene, step, reason)


async def give_up_step(scene: Scene, step: Row, reason: str) -> None:
    """Cancel a step with its approval request, nested flow, or crew."""
    kind = scene.shape.steps[str(step["name"]).partition("[")[0]].kind
    if scene.phase(step) is Phase.ACTIVE:
        if kind == "approval":
            await scene.tx.close_gate(scene.tenant_id, step["id"], "withdrawn")
        elif kind == "flow":
            await flow.give_up(scene, step, reason)
        elif kind == "crew":
            await crew.dismiss(scene, step, reason)
    scene.move(step, Verb.CANCEL, reason)


async def conclude(scene: Scene) -> None:
    """Finish a flow whose steps have all finished, and advance its parent flow."""
    if scene.own_phase is Phase.ACTIVE and not scene.jobs:
        await scene.write()
        if not await scene.tx.any_unfinished(scene.id):
            begin_flow(scene)  # a flow of which every step is skipped has not started until now
            if (step := await _unsatisfied(scene)) is None:
                scene.move_flow(Verb.SUCCEED)
            else:
                await fail(scene, step)
    if scene.ends:
        scene.ends = False
        await scene.write()
        await _over(scene)


async def _unsatisfied(scene: Scene) -> Row | None:
    """Return a finished step that is not satisfied, or None if there is none.

    There is one only if someone edited the state of that step, or the state of its flow after the step had finished.
    """
    if all(scene.phase({"state": state}) is Phase.SATISFIED for state in await scene.tx.step_counts(scene.id)):
        return None
    await scene.look_at_all()
    own = (row for row in scene.steps.values() if row["parent_id"] is None)
    return next(row for row in own if scene.phase(row) is not Phase.SATISFIED)


async def _over(scene: Scene) -> None:
    """Propagate the end of a flow to its webhook and to its parent flow.

    A run that did not succeed also cancels its remaining steps.
    """
    if scene.kind.name == "run" and scene.flow["state"] != KINDS["run"].flow.move("succeed").target.name:
        await scene.look_at_all()
        for step in scene.steps.values():
            if not scene.kind.step.state(step["state"]).final:
                await give_up_step(scene, step, "its run ended")
        await scene.write()
    await outbox.enqueue(scene.tx, scene.flow, scene.kind.flow, scene.flow["state"])
    if not scene.starting:
        await flow.ended(scene, go_on)
