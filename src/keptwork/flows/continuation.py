"""Continue unsuccessful flows with forks that take over every satisfied step, at any depth.

A final state stays final. A failed run, and a nested flow that is retried, therefore continue as a new flow of the same
definition with the same inputs. Forks that rerun steps are in forks.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keptwork.core.lifecycles import Verb
from keptwork.errors import BadInput
from keptwork.flows import create, for_each
from keptwork.flows import engine as advance
from keptwork.flows.commands import FlowRef, row_of
from keptwork.flows.compiled import KINDS, Kind
from keptwork.flows.plan import Phase, phases
from keptwork.flows.program_output import TRUNCATED
from keptwork.flows.transaction import Actor, Row, Scene, inputs_of
from keptwork.jobs.complete import again_if_moved
from keptwork.store import Store
from keptwork.store.contract.flows_steps import Output
from keptwork.store.contract.flows_templates import Template
from keptwork.store.contract.store import Reader, Transaction


class Earlier(NamedTuple):
    """An unsuccessful flow that can be continued."""

    kind: Kind
    flow: Row


async def resumed_run(store: Store, ref: FlowRef, actor: Actor) -> FlowRef:
    """Return the run that continues a failed one. A repeated call returns the same run."""

    async def work(tx: Transaction) -> FlowRef:
        seen = await row_of(tx, ref, ("id", "tree_id"))
        if seen["tree_id"] not in (None, ref.id):
            raise BadInput(what=f"{ref.public_id} is inside another flow; resume the outermost one")
        await tx.lock_trees([ref.id])
        old = await row_of(tx, ref)
        key = await tx.resumption(ref.kind.flow, ref.id)
        if key is None:
            template = await tx.template(old["tenant_id"], old["template_id"])
            if template is None:
                raise BadInput(what=f"the definition of {ref.public_id} is gone, so it cannot be resumed")
            how = {"actor": actor, "queue": old["queue"]}
            key = (await continued(tx, Earlier(ref.kind, old), template, inputs_of(old), **how)).id
        return FlowRef(ref.kind, key)

    return await again_if_moved(store, work)


async def last_of(store: Reader, ref: FlowRef) -> FlowRef:
    """Return the newest flow that continues this one, or the flow itself."""
    while (key := await store.resumption(ref.kind.flow, ref.id)) is not None:
        ref = FlowRef(ref.kind, key)
    return ref


async def left_by(scene: Scene, row: Row, template: Template, inputs: Mapping[str, Any]) -> Earlier | None:
    """Return the step's earlier flow if it was unsuccessful and did the same work.

    Otherwise, return None. The same work has the same definition and inputs.
    """
    earlier = await _earlier(scene, row) if row["started_at"] is not None or scene.flow["resumes"] else None
    if earlier is None:
        return None
    kind, flow = earlier
    succeeded = {move.target.name for move in kind.flow.moves if move.verb is Verb.SUCCEED}
    unsuccessful = kind.flow.state(flow["state"]).final and flow["state"] not in succeeded
    same = flow["template_id"] == template.id and inputs_of(flow) == dict(inputs)
    return earlier if unsuccessful and same else None


async def _earlier(scene: Scene, row: Row) -> Earlier | None:
    """Return the newest flow of this step, or of the same step in the continued flow."""
    tx, flow, step = scene.tx, scene.flow, row
    while True:
        found = [Earlier(kind, one) for kind in KINDS.values() for one in await tx.subflows(kind.flow, step["id"])]
        if found:
            return max(found, key=lambda one: int(one.flow["id"]))
        older = await tx.rows(scene.kind.flow, [flow["forked_from"]]) if flow["resumes"] else []
        steps = await tx.steps(older[0]["id"], names=[row["name"]]) if older else []
        if not steps:
            return None
        flow, step = older[0], steps[0]


async def continued(
    tx: Transaction, earlier: Earlier, template: Template, inputs: Mapping[str, Any], **how: Any
) -> Scene:
    """Create a flow that takes over the satisfied steps of an earlier one, and start the rest."""
    how |= {"hold": True, "forked_from": earlier.flow["id"], "resumes": True}
    scene = await create.scene_of(tx, template, inputs, **how)
    scene.starting = scene.flow["step_id"] is not None  # the caller that starts a nested flow checks its outcome
    await tx.amend(scene.kind.flow, [scene.id], scene.tenant_id, held_at=None)
    scene.flow["held_at"] = None
    await scene.look_at_all()
    await _keep_all(scene, earlier)
    await scene.write()
    await advance.restart(scene)
    return scene


async def _keep_all(scene: Scene, earlier: Earlier) -> None:
    old = FlowRef(earlier.kind, earlier.flow["id"])
    meaning, rows = phases(earlier.kind.step), await scene.tx.steps(old.id)
    outputs = {one.name: one for one in await scene.tx.outputs(old.id, [row["name"] for row in rows])}
    items: dict[int, list[Row]] = {}
    for row in rows:
        if row["parent_id"] is not None:
            items.setdefault(row["parent_id"], []).append(row)
    for row in rows:
        if row["parent_id"] is not None:
            continue
        if meaning[row["state"]] is Phase.SATISFIED:
            advance.begin_flow(scene)
            keep(scene, scene.steps[row["name"]], row, outputs[row["name"]], f"kept from {old.public_id}")
        elif row["id"] in items:
            advance.begin_flow(scene)
            await _keep_items(scene, row, items[row["id"]], outputs, f"kept from {old.public_id}")


async def _keep_items(scene: Scene, old: Row, items: list[Row], outputs: Mapping[str, Output], reason: str) -> None:
    """Create the items of a `for_each` step as they were, and take over the satisfied ones."""
    parent, places = scene.steps[old["name"]], sorted(items, key=lambda row: int(row["place"]))
    scene.move(parent, Verb.START, reason)
    await scene.write()
    await for_each.make(scene, parent, [json.loads(outputs[row["name"]].item or "null") for row in places])
    await scene.look_at(row["name"] for row in places)
    for row in places:
        if scene.phase(row) is Phase.SATISFIED:
            keep(scene, scene.steps[row["name"]], row, outputs[row["name"]], reason)


def keep(scene: Scene, new: Row, old: Row, output: Output, reason: str) -> None:
    """Move a step to where the old step is: succeeded or skipped. Its cost stays with the old step."""
    skipped = {move.target.name for move in scene.kind.step.moves if move.verb is Verb.SKIP}
    if old["state"] in skipped:
        scene.move(new, Verb.SKIP, reason)
        return
    scene.move(new, Verb.START, reason)
    if (old["reason"] or "").startswith(TRUNCATED):
        reason = f"{old['reason'].partition(';')[0]}; {reason}"
    what = {"output": output.output, "output_hash": output.output_hash, "cost_micros": None}
    scene.move(new, Verb.SUCCEED, reason, **what)
