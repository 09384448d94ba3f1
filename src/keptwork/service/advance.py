"""Moving a flow on: what steps come to, and what follows from it, in the transaction of what caused it.

    a job ends → its step ends → what waited for it begins, or the flow ends → the step of the flow around it ends → …

Everything here runs under the lock of the tree of flows, over the rows as they are then.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keptwork.errors import BadInput, NotFound
from keptwork.flow.definition import Step
from keptwork.flow.expression import Look, Wrong
from keptwork.flow.phase import Phase
from keptwork.flow.plan import NOTHING_KNOWN, Begin, Beginning, beginning, pause_us, ready, wanted_at_start
from keptwork.flow.program import cut_in
from keptwork.lifecycle import Change, Verb
from keptwork.moments import span_us
from keptwork.service import elements, gates, step_crews, stretch, subflows, webhooks
from keptwork.service.definitions import KINDS
from keptwork.service.flow_scene import Actor, Row, Scene, cost_of, flow_of
from keptwork.service.seat import Seat
from keptwork.service.step_jobs import step_job
from keptwork.store.blobs import RESULT_BLOB
from keptwork.store.protocol import Transaction


async def settled(tx: Transaction, changes: Sequence[Change], seat: Seat | None = None) -> None:
    """What follows from moves of jobs that carry out steps, which were just written in this transaction. If there is a
    seat and just one step comes next, it takes that."""
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
    """What follows for steps from the end of crews, which was just written in this transaction."""
    await step_crews.ended(tx, crews, go_on, actor)


async def _settled_in(tx: Transaction, settled: list[tuple[Row, Change]], seat: Seat | None) -> None:
    kind, flow = await flow_of(tx, settled[0][0])
    scene = await Scene.of(tx, kind, flow, Actor(settled[0][1].actor))
    scene.seat = seat
    if scene.over:
        return
    begin_flow(scene)
    scene.steps = {row["name"]: row for row, _ in settled}
    # Sent again after a lost answer, a move of a job finds its step moved already, and all that follows done.
    moved = [row for row, change in settled if await _follow(scene, row, change)]
    carried, companions = await _stretches(scene, settled, moved)
    if moved or companions:
        await go_on(scene, [*moved, *carried], companions)
    await scene.write()


async def _stretches(
    scene: Scene, settled: list[tuple[Row, Change]], moved: Sequence[Row]
) -> tuple[list[Row], list[str]]:
    """The steps that were carried out along with others, and those that were to be and were not. A job whose own step
    has not moved with it leaves its companions, too."""
    carried, companions = list[Row](), list[str]()
    await stretch.look_at(scene, (change for _, change in settled))
    for row, change in settled:
        if row["parent_id"] is None and scene.shape.steps[row["name"]].inline and not held(scene):
            if any(row is one for one in moved):
                done, others = await stretch.handed_in(scene, change)
                carried += done
            else:
                others = await stretch.left(scene, change)
            companions += others
    return carried, companions


async def _follow(scene: Scene, row: Row, change: Change) -> bool:
    """Makes the move of a step that follows from that of its job; false if none does. A job that only waits, or is
    given back, moves nothing."""
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
        ago = stretch.ended_ago(change)
        kept = await scene.kept(whole)
        scene.move(row, Verb.SUCCEED, cut_in(whole), **kept, cost_micros=cost_of(whole), ago_us=ago)
    elif verb is Verb.RETRY and not waiting:
        _retry_step(scene, row, error)
    else:
        return False
    return True


async def _has_another_job(scene: Scene, row: Row, change: Change) -> bool:
    """Whether the step waits in a later round than the one that job was of: its end was told before."""
    found = stretch.worked_on(scene.public_id, await scene.tx.unfinished_jobs(scene.tree))
    return any(name == row["name"] and job.id != change.id for name, job in found)


def _retry_step(scene: Scene, row: Row, error: str) -> None:
    """Its job will be tried again. A step of a workstream fails first, and is then found worth another attempt. A job
    that has attempts to spare, for a crash of its worker, may be tried again without either."""
    if scene.kind.name != "run" and row["retry_count"] >= row["max_retries"]:
        return
    if not scene.kind.step.leading_out_of(row["state"], Verb.RETRY):
        scene.move(row, Verb.FAIL, error, error=error)
    scene.move(row, Verb.RETRY, error, error=error)


def fail_step(scene: Scene, row: Row, error: str) -> None:
    """A step fails for good; one that has not begun, or not begun again, does so first."""
    begun = next(iter(scene.kind.step.leading_out_of(row["state"], Verb.FAIL)), None)
    if begun is None:
        scene.move(row, Verb.START if scene.phase(row) is Phase.WAITING else Verb.RESUME)
    scene.move(row, Verb.FAIL, error, error=error)


def begin_flow(scene: Scene) -> None:
    """A flow whose first step has begun, has begun."""
    if scene.flow["state"] == scene.kind.flow.initial.name:
        scene.move_flow(Verb.START)


async def go_on(scene: Scene, ended: Iterable[Row], companions: Sequence[str] = ()) -> None:
    """What follows from steps that have come to something: others begin, or the flow ends. Then it is all written. The
    companions of a job that has ended without them begin anew."""
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
    """Whether nothing of it is to begin: it is held, or has failed and is not being tried again."""
    return scene.flow["held_at"] is not None or scene.own_phase is not Phase.ACTIVE


async def _tell_parents(scene: Scene, ended: Iterable[Row]) -> tuple[list[str], list[Row]]:
    """Of steps that have come to something, the names of those that are done and the rows of those that failed.
    Elements of a step move that one instead."""
    rows = list(ended)
    rows += await elements.told(scene, [row for row in rows if row["parent_id"] is not None], held(scene))
    own = {row["name"]: row for row in rows if row["parent_id"] is None}
    done = [name for name, row in own.items() if scene.phase(row) is Phase.SATISFIED]
    return done, [row for row in own.values() if scene.phase(row) is Phase.FAILED]


# --- beginning


async def begin_at_roots(scene: Scene) -> None:
    """The steps that wait for none begin."""
    roots = scene.shape.roots
    await scene.look_at(name for name in roots if not scene.shape.steps[name].inline)
    await let_go(scene, await begin(scene, roots))
    await conclude(scene)
    await scene.write()


async def restart(scene: Scene) -> None:
    """Everything that could run and does not begins: after a pause, a new round, or a repair."""
    if not held(scene):
        await scene.look_at_all()
        working = await _worked_on(scene)
        own = {name: row for name, row in scene.steps.items() if row["parent_id"] is None}
        idle = [name for name in own if name not in working and _may_begin(scene, name)]
        skipped = await begin(scene, idle)
        for name, row in own.items():
            expanded = scene.shape.steps[name].for_each is not None and name not in idle
            going = expanded and scene.phase(row) is Phase.ACTIVE and not held(scene)
            if going and await elements.go_on(scene, row):
                skipped.append(name)
                if scene.phase(row) is Phase.FAILED:
                    await fail(scene, row)
        await let_go(scene, skipped)
    await conclude(scene)
    await scene.write()


async def _worked_on(scene: Scene) -> set[str]:
    return {name for name, _ in stretch.worked_on(scene.public_id, await scene.tx.unfinished_jobs(scene.tree))}


async def _begin_anew(scene: Scene, names: Sequence[str]) -> None:
    """Steps that wait for nothing, and whose job has ended, unless they have come to something since."""
    await scene.write()  # jobs of this very moment count
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
    """A failed workstream is tried again: what did not succeed begins anew. If it has a timeout, it has as much time as
    is left of that; all of it again if `since` says from when on."""
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
    """What comes after these steps begins, and what comes after what is skipped."""
    while ended:
        await scene.look_at(scene.shape.around(ended))
        ended = await begin(scene, ready(scene.shape, scene.by_phase, ended))


async def begin(scene: Scene, names: Iterable[str]) -> list[str]:
    """These steps begin; returns those that are done with it already, because they are skipped."""
    skipped, inline = [], []
    for name in names:
        step = scene.shape.steps[name]
        if step.inline and step.when is None:
            inline.append(name)
            continue
        if held(scene):
            break  # one of them could not begin, and with it the flow has failed
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
        await scene.look_at(stretch.firsts(scene, inline))
        stretch.begin(scene, inline, scene.steps)
    return skipped


async def _known_at_start(scene: Scene, step: Step) -> Look:
    return await scene.values(wanted_at_start(step), cut=step.takes_cut)


async def _begin_without_job(scene: Scene, row: Row, how: Beginning) -> bool:
    """A step that no worker carries out; true if it is over at once."""
    begin_flow(scene)
    match how.how:
        case Begin.GATE:
            await _begin_gate(scene, row)
        case Begin.SUBFLOW:
            return await _begin_subflow(scene, row)
        case Begin.CREW:
            if error := await step_crews.muster(scene, row):
                fail_step(scene, row, error)
                await fail(scene, row)
        case Begin.EXPAND:
            over = await elements.expand(scene, row, how.items)
            if scene.phase(row) is Phase.FAILED:
                await fail(scene, row)
            return over and scene.phase(row) is Phase.SATISFIED
        case Begin.FAIL:
            fail_step(scene, row, how.why)
            await fail(scene, row)
    return False


async def _begin_gate(scene: Scene, row: Row) -> None:
    try:
        await gates.open_gate(scene, row)
    except Wrong as error:
        fail_step(scene, row, str(error))
        await fail(scene, row)


async def _begin_subflow(scene: Scene, row: Row) -> bool:
    """A step that is a flow. One that cannot be started fails the step, as anything else that is wrong with it does."""
    try:
        start = await subflows.chosen(scene, row)
    except (BadInput, NotFound, Wrong) as error:
        fail_step(scene, row, str(error))
        await fail(scene, row)
        return False
    scene.move(row, Verb.START)
    over = await subflows.start(scene, row, start)
    if scene.phase(row) is Phase.FAILED:
        await fail(scene, row)
    return over and scene.phase(row) is Phase.SATISFIED


# --- ending


async def fail(scene: Scene, step: Row) -> None:
    """A step has failed for good, and with it its flow: nothing more of it begins. A workstream may be tried again."""
    if scene.own_phase is not Phase.ACTIVE:
        return
    gone = f"it is {step['state']}, and nothing leads on from there" if scene.phase(step) is Phase.GONE else None
    error = f"{step['name']}: {gone or step['error'] or step['reason'] or 'it failed'}"
    scene.jobs.clear()  # what was about to begin does not
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
    """A flow that takes longer than it may ends with all that belongs to it."""
    error = f"it took longer than {scene.shape.flow.timeout}"
    if scene.kind.name == "run":
        begin_flow(scene)
        await give_up_steps(scene, error)
        scene.move_flow(Verb.FAIL, error, error=error)
    else:
        await give_up(scene, error)
    await conclude(scene)


def patience_us(scene: Scene) -> int:
    """How long a failed workstream waits for an operator. One inside another flow does not, unless it says so."""
    definition = scene.shape.flow
    if scene.flow["step_id"] is not None and "abandon_after" not in definition.model_fields_set:
        return 0
    return span_us(definition.abandon_after)


async def withdraw(scene: Scene, reason: str) -> None:
    """Jobs that no worker has begun are not needed any longer; their steps can begin another time."""
    scene.jobs.clear()
    await scene.look_at_all()
    waiting = {step["id"] for step in scene.steps.values() if scene.phase(step) is Phase.WAITING}
    for job in await scene.tx.unfinished_jobs(scene.tree):
        if job.step_id in waiting and not job.attempts:
            scene.cancel_job(job, reason)


async def give_up(scene: Scene, reason: str) -> None:
    """The flow is cancelled or abandoned, and with it every step, job, question and flow inside it."""
    await give_up_steps(scene, reason)
    scene.move_flow(Verb.CANCEL, reason)


async def give_up_steps(scene: Scene, reason: str) -> None:
    """Every step, job, question and flow inside it ends."""
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
    """A step ends with what is asked at it, and with the flow or crew that it is."""
    kind = scene.shape.steps[str(step["name"]).partition("[")[0]].kind
    if scene.phase(step) is Phase.ACTIVE:
        if kind == "approval":
            await scene.tx.close_gate(scene.tenant_id, step["id"], "withdrawn")
        elif kind == "flow":
            await subflows.give_up(scene, step, reason)
        elif kind == "crew":
            await step_crews.dismiss(scene, step, reason)
    scene.move(step, Verb.CANCEL, reason)


async def conclude(scene: Scene) -> None:
    """Ends a flow whose steps have all come to an end, and tells the flow around it."""
    if scene.own_phase is Phase.ACTIVE and not scene.jobs:
        await scene.write()
        if not await scene.tx.any_unfinished(scene.id):
            begin_flow(scene)  # one of which every step is skipped has not begun until now
            if (step := await _unsatisfied(scene)) is None:
                scene.move_flow(Verb.SUCCEED)
            else:
                await fail(scene, step)
    if scene.ends:
        scene.ends = False
        await scene.write()
        await _over(scene)


async def _unsatisfied(scene: Scene) -> Row | None:
    """A step that has ended, but not well: it was put into that state by hand, or its flow was after it had ended."""
    if all(scene.phase({"state": state}) is Phase.SATISFIED for state in await scene.tx.step_counts(scene.id)):
        return None
    await scene.look_at_all()
    own = (row for row in scene.steps.values() if row["parent_id"] is None)
    return next(row for row in own if scene.phase(row) is not Phase.SATISFIED)


async def _over(scene: Scene) -> None:
    """What a flow that has ended means to others. In a run, the steps after the one that failed go with it."""
    if scene.kind.name == "run" and scene.flow["state"] != KINDS["run"].flow.move("succeed").target.name:
        await scene.look_at_all()
        for step in scene.steps.values():
            if not scene.kind.step.state(step["state"]).final:
                await give_up_step(scene, step, "its run ended")
        await scene.write()
    await webhooks.enqueue(scene.tx, scene.flow, scene.kind.flow, scene.flow["state"])
    if not scene.starting:
        await subflows.ended(scene, go_on)
