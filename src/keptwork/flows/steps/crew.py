"""Steps that are crews: submit and cancel them, and apply their end to the step."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from keptwork.agents.engine import SHARE_KIND
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import CREW, Verb
from keptwork.core.lifecycles.crew import COMPLETED
from keptwork.crews import commands as crews
from keptwork.crews import engine as crew_moves
from keptwork.flows import expression
from keptwork.flows.definition import Crew
from keptwork.flows.expression import Wrong
from keptwork.flows.plan import Phase
from keptwork.flows.steps.kind import attempts_of, queue_of, retries_of
from keptwork.flows.transaction import Actor, Row, Scene, flow_of
from keptwork.store.contract.checkpoints_blob_service import whole
from keptwork.store.contract.store import Transaction

SHARE = SHARE_KIND
"""Kind of the jobs that are shares of a step's crew."""

GoOn = Callable[[Scene, Sequence[Row]], Awaitable[None]]


async def muster(scene: Scene, row: Row) -> str | None:
    """Submit the crew of a step, and return an error if there is no crew to wait for.

    The crew is invalid, or has failed immediately because it needs more workers than its quota.
    """
    step = scene.shape.steps[row["name"]]
    said = step.crew or Crew.model_validate({"task": row["name"]})
    try:
        task = expression.as_text(expression.filled(said.task, await scene.values(step.references, cut=step.takes_cut)))
    except Wrong as error:
        return str(error)
    if not task.strip():
        return "its task is empty"
    attempts = attempts_of(scene.kind.name, step)
    rules = {"kind": SHARE, "queue": queue_of(scene, step), "priority": 0, "max_attempts": attempts}
    asked = {"call": said.call, "tier": step.tier, "retries": retries_of(scene.kind.name, step)}
    work = json.dumps({**rules, "on_exhausted": "fail", "arguments": asked, "limit_keys": None})
    scene.move(row, Verb.START)
    await scene.write()
    whose = {"actor": scene.actor.name, "trace_id": scene.flow["trace_id"]}
    correlation = scene.flow["correlation_id"] or scene.public_id
    crew = crews.NewCrew(scene.tenant_id, task, said.workers, SHARE, work, correlation_id=correlation, **whose)
    key = await crews.submit_in(scene.tx, crew, crews.Inside(tree_id=scene.tree, step_id=row["id"]))
    (made,) = await scene.tx.rows(CREW, [key])
    return None if made["completed_at"] is None else _failure(made)


async def dismiss(scene: Scene, step: Row, reason: str) -> None:
    """Cancel the crew of a step."""
    unfinished = [crew for crew in await scene.tx.crews_of_step(step["id"]) if crew["completed_at"] is None]
    if unfinished:
        await scene.tx.lock_trees([crew_moves.lock_of(scene.tenant_id)])
    for crew in unfinished:
        await crew_moves.call_off(scene.tx, crew, reason, scene.actor.name)
    if unfinished:
        await crew_moves.allocate(scene.tx, scene.tenant_id)


async def ended(tx: Transaction, over: Iterable[Row], go_on: GoOn, actor: Actor) -> None:
    """Apply the end of crews to their steps."""
    for crew in [crew for crew in over if crew["step_id"] is not None]:
        rows = await tx.steps_by_key([crew["step_id"]])
        if rows:
            await _ended(tx, crew, rows[0], go_on, actor)


async def _ended(tx: Transaction, crew: Row, row: Row, go_on: GoOn, actor: Actor) -> None:
    kind, flow = await flow_of(tx, row)
    scene = await Scene.of(tx, kind, flow, actor)
    scene.steps[row["name"]] = row
    if scene.over or scene.phase(row) is not Phase.ACTIVE:
        return
    (crew,) = await tx.rows(CREW, [crew["id"]])
    if crew["state"] == COMPLETED.name:
        output = {"id": public_id(CREW.name, crew["id"]), "shares": await _results(tx, crew)}
        scene.move(row, Verb.SUCCEED, **await scene.kept(json.dumps(output, separators=(",", ":"))))
    else:
        error = _failure(crew)
        scene.move(row, Verb.FAIL, error, error=error)
    await go_on(scene, [row])


def _failure(crew: Row) -> str:
    why = crew["error"] or crew["reason"]
    return f"{public_id(CREW.name, crew['id'])} is {crew['state']}{f': {why}' if why else ''}"


async def _results(tx: Transaction, crew: Row) -> Any:
    text = (await whole(tx, crew))["result"]
    return [] if text is None else json.loads(text)
