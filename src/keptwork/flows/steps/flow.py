"""Nested flows: start and cancel the flow of a step, and apply its end to the step."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.lifecycles import Verb
from keptwork.errors import BadInput, NotFound
from keptwork.flows import create, expression
from keptwork.flows.compiled import KINDS, Kind, shape_of
from keptwork.flows.plan import NO_ITEM, Phase
from keptwork.flows.program_output import cut_in
from keptwork.flows.transaction import Row, Scene, content, flow_of
from keptwork.flows.validation import bound
from keptwork.store.contract.flows_templates import PREFIX, Template

DEEPEST = 20
"""Maximum depth of nested flows. It also stops flows that contain themselves."""

GoOn = Callable[[Scene, Sequence[Row]], Awaitable[None]]


class Start(NamedTuple):
    """The nested flow that a step must start: its definition and inputs."""

    template: Template
    inputs: Row


async def chosen(scene: Scene, row: Row, item: Any = NO_ITEM) -> Start:
    """Return the flow that a step must start.

    Raise `BadInput`, `NotFound`, or `Wrong`, before anything changes, if the flow or its inputs are invalid.
    """
    step = scene.shape.steps[str(row["name"]).partition("[")[0]]
    template = await _template(scene, step.flow or "")
    given = expression.filled(step.with_, await scene.values(step.references, item, cut=step.takes_cut))
    inputs = bound(shape_of(template).flow, given)
    if await _depth(scene) >= DEEPEST:
        raise BadInput(what=f"the flow {template.name} would lie {DEEPEST} flows deep; does one contain itself?")
    return Start(template, inputs)


async def _depth(scene: Scene) -> int:
    """Return how many flows contain this flow."""
    depth, step_id = 0, scene.flow["step_id"]
    while step_id is not None and depth < DEEPEST:
        _, flow = await flow_of(scene.tx, (await scene.tx.steps_by_key([step_id]))[0])
        depth, step_id = depth + 1, flow["step_id"]
    return depth


async def start(scene: Scene, row: Row, start: Start) -> bool:
    """Start the nested flow of a step, and return whether it has ended already.

    It can end immediately if it has nothing to wait for; then the step has also ended. If the step had an unsuccessful
    flow before, the new one continues it and takes over the satisfied steps.
    """
    from keptwork.flows import continuation

    await scene.write()
    how: dict[str, Any] = {"actor": scene.actor, "inside": scene, "step_id": row["id"]}
    earlier = await continuation.left_by(scene, row, start.template, start.inputs)
    if earlier is None:
        inner = await create.scene_of(scene.tx, start.template, start.inputs, **how)
    else:
        inner = await continuation.continued(scene.tx, earlier, start.template, start.inputs, **how)
    if inner.over:
        await _told(inner, scene, row)
    return inner.over


async def _template(scene: Scene, named: str) -> Template:
    """Return a template by its ID, as stored definitions name it, or the newest of a name."""
    prefix, key = ids.key_of(named) or ("", 0)
    found = await scene.tx.template(scene.tenant_id, key) if prefix == PREFIX else None
    newest = [] if found else await scene.tx.templates(scene.tenant_id, name=named, limit=1)
    if found is None and not newest:
        raise NotFound(what="template", id=named, listing="keptwork templates list")
    return found or newest[0]


async def ended(scene: Scene, go_on: GoOn) -> None:
    """Apply the end of a nested flow to its step."""
    step_id = scene.flow["step_id"]
    if step_id is None:
        return
    rows = await scene.tx.steps_by_key([step_id])
    if not rows:
        return
    kind, flow = await flow_of(scene.tx, rows[0])
    around = await Scene.of(scene.tx, kind, flow, scene.actor)
    row = around.steps[rows[0]["name"]] = rows[0]
    if around.over or around.phase(row) is not Phase.ACTIVE:
        return
    await _told(scene, around, row)
    await go_on(around, [row])


async def _told(scene: Scene, around: Scene, row: Row) -> None:
    """Move the step of a nested flow to the flow's outcome."""
    if scene.kind.flow.state(scene.flow["state"]) is _success(scene.kind):
        output = await _output(scene)
        around.move(row, Verb.SUCCEED, cut_in(output), **await around.kept(output))
    else:
        why = scene.flow["error"] or scene.flow["reason"]
        error = f"{scene.public_id} is {scene.flow['state']}{f': {why}' if why else ''}"
        around.move(row, Verb.FAIL, error, error=error)


def _success(kind: Kind) -> Any:
    return next(move.target for move in kind.flow.moves if move.verb is Verb.SUCCEED)


async def _output(scene: Scene) -> str:
    """Return the outputs of a flow's steps, by name, without steps that have none."""
    found = await scene.tx.outputs(scene.id, list(scene.shape.steps))
    left = [one for one in found if one.output is not None or one.output_hash is not None]
    steps = {one.name: await content(scene.tx, scene.tenant_id, one) for one in left}
    return json.dumps({"id": scene.public_id, "steps": steps}, separators=(",", ":"))


async def give_up(scene: Scene, step: Row, reason: str) -> None:
    """Cancel the nested flows of a step."""
    from keptwork.flows import engine as advance

    for inner in await _unfinished(scene, step):
        await advance.give_up(inner, reason)
        await inner.write()


async def inside(scene: Scene) -> list[Scene]:
    """Return the unfinished nested flows, outer flows first."""
    await scene.look_at_all()
    found: list[Scene] = []
    for step in scene.steps.values():
        if scene.phase(step) is Phase.ACTIVE and scene.shape.steps[str(step["name"]).partition("[")[0]].kind == "flow":
            for inner in await _unfinished(scene, step):
                found += [inner, *await inside(inner)]
    return found


async def _unfinished(scene: Scene, step: Row) -> list[Scene]:
    found = [(kind, flow) for kind in KINDS.values() for flow in await scene.tx.subflows(kind.flow, step["id"])]
    scenes = [await Scene.of(scene.tx, kind, flow, scene.actor) for kind, flow in found]
    return [inner for inner in scenes if not inner.over]
