"""Hold a flow and its nested flows, and lift the hold."""

from __future__ import annotations

from keptwork.flows import engine as advance
from keptwork.flows.steps import flow
from keptwork.flows.transaction import Scene


async def hold_in(scene: Scene) -> None:
    """Hold a flow and its nested flows: no further steps start, and running steps continue.

    A flow that is already held does not change.
    """
    if scene.flow["held_at"] is not None:
        return
    now = await scene.tx.now()
    for one in (scene, *await flow.inside(scene)):
        if one.flow["held_at"] is None:
            await _held_since(one, now)
            await advance.withdraw(one, "its flow is held")
            await one.write()


async def let_go_in(scene: Scene) -> None:
    """Lift the hold of a flow and of the nested flows that were held with it.

    A nested flow that was held separately stays held.
    """
    since = scene.flow["held_at"]
    inside = [one for one in await flow.inside(scene) if since is not None and one.flow["held_at"] == since]
    for one in (scene, *inside):
        await _held_since(one, None)
    await advance.restart(scene)
    for one in inside:
        await _go_on(one)


async def _held_since(scene: Scene, moment: int | None) -> None:
    await scene.tx.amend(scene.kind.flow, [scene.id], scene.tenant_id, held_at=moment)
    scene.flow["held_at"] = moment


async def _go_on(scene: Scene) -> None:
    """Restart the steps of a nested flow, unless an earlier restart has finished the flow."""
    (flow,) = await scene.tx.rows(scene.kind.flow, [scene.id])
    now = await Scene.of(scene.tx, scene.kind, flow, scene.actor)
    if not now.over:
        await advance.restart(now)
