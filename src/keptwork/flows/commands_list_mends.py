"""Apply an operator's move of a step to its items, or of an item to its step."""

from __future__ import annotations

from keptwork.core.lifecycles import Verb
from keptwork.flows import engine as advance
from keptwork.flows.plan import Phase
from keptwork.flows.transaction import Row, Scene


async def follow(scene: Scene, row: Row, verb: Verb) -> None:
    """Cancel the unfinished items of a skipped step, and reset the failed items of a reset step.

    A failed step is reset when none of its items is failed any more.
    """
    reason = scene.actor.reason or f"{row['name']} was asked to {verb}"
    elements = [one for one in scene.steps.values() if one["parent_id"] == row["id"]]
    for one in elements:
        if verb is Verb.SKIP and not scene.kind.step.state(one["state"]).final:
            await _give_up(scene, one, reason)
        elif verb is Verb.RESET and scene.phase(one) is Phase.FAILED:
            scene.move(one, Verb.RESET, reason)
    parent = next((one for one in scene.steps.values() if one["id"] == row["parent_id"]), None)
    if parent is not None and scene.phase(parent) is Phase.FAILED and not _failed_in(scene, parent):
        scene.move(parent, Verb.RESET, reason)


def _failed_in(scene: Scene, parent: Row) -> bool:
    return any(one["parent_id"] == parent["id"] and scene.phase(one) is Phase.FAILED for one in scene.steps.values())


async def _give_up(scene: Scene, element: Row, reason: str) -> None:
    for job in await scene.tx.unfinished_jobs(scene.tree):
        if job.step_id == element["id"]:
            scene.cancel_job(job, reason)
    await advance.give_up_step(scene, element, reason)
