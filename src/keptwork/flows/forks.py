"""Forks: new workstreams that rerun one from a given step, with its earlier outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keptwork.core import secrets
from keptwork.core.validation import OWN_QUEUES
from keptwork.errors import BadInput
from keptwork.flows import create
from keptwork.flows import engine as advance
from keptwork.flows.approvals import Insist, insist_on_step
from keptwork.flows.commands import FlowRef, row_of
from keptwork.flows.compiled import KINDS, shape, shape_of
from keptwork.flows.continuation import keep
from keptwork.flows.plan import Phase, Shape, phases
from keptwork.flows.transaction import Actor, Row, Scene, inputs_of
from keptwork.flows.validation import bound
from keptwork.jobs.complete import again_if_moved
from keptwork.store import Store
from keptwork.store.contract.flows_steps import Output
from keptwork.store.contract.store import Reader, Transaction


async def fork(
    store: Store, ref: FlowRef, from_step: str, given: Mapping[str, Any] | None = None, *, actor: Actor
) -> FlowRef:
    """Start a workstream with the definition and inputs of an existing one, or other inputs.

    The new workstream takes over the finished steps that do not come after `from_step`, with their outputs. It runs
    `from_step` and all steps after it. The existing workstream does not change.
    """
    if ref.kind.name != "workstream":
        raise BadInput(what=f"{ref.public_id} is a {ref.kind.name}; only a workstream can be forked")
    secrets.insist(f"what the fork of {ref.public_id} is given", json.dumps(dict(given or {})))

    async def work(tx: Transaction) -> FlowRef:
        seen = await row_of(tx, ref, ("id", "tree_id"))
        await tx.lock_trees([seen["tree_id"] or ref.id])  # so that retention does not delete what the fork takes over
        old = await row_of(tx, ref)
        template = await tx.template(old["tenant_id"], old["template_id"])
        if template is None:
            raise BadInput(what=f"the definition of {ref.public_id} is gone, so it cannot be forked")
        whole = shape_of(template)
        if from_step not in whole.steps:
            raise BadInput(what=f"{ref.public_id} has no step {from_step!r}; it has: {', '.join(whole.steps)}")
        # A null input came from a default or was not given.
        kept = {name: value for name, value in inputs_of(old).items() if value is not None}
        inputs = bound(whole.flow, {**kept, **(given or {})})
        how = {"hold": True, "forked_from": ref.id, "queue": _queue(old)}
        key = await create.launched(tx, template, inputs, actor=actor, **how)
        await _carry_on(tx, ref, key, whole, from_step, actor)
        return FlowRef(KINDS["workstream"], key)

    return await again_if_moved(store, work)


async def insist_on_kept_answers(store: Reader, ref: FlowRef, from_step: str, insist: Insist) -> None:
    """Raise if the caller must not give the approvals that the fork takes over. A fork gives them again."""
    flow = await row_of(store, ref, ("tenant_id", "template_id"))
    whole = await shape(store, flow["tenant_id"], flow["template_id"])
    kept = set(whole.steps) - after(whole, from_step) if from_step in whole.steps else set()
    for name, step in whole.steps.items():
        if name in kept:
            insist_on_step(step, insist)


def after(shape: Shape, name: str) -> set[str]:
    """Return a step and all steps that directly or indirectly come after it.

    >>> from keptwork.flows.definition import Flow
    >>> flow = Flow.model_validate({"name": "f", "steps": [{"id": "a", "command": ["true"]},
    ...     {"id": "b", "command": ["true"], "depends_on": ["a"]}, {"id": "c", "command": ["true"]}]})
    >>> sorted(after(Shape.of(flow), "a"))
    ['a', 'b']
    """
    found, new = {name}, [name]
    while new:
        new = [later for one in new for later in shape.after[one] if later not in found]
        found.update(new)
    return found


async def _carry_on(tx: Transaction, ref: FlowRef, key: int, shape: Shape, name: str, actor: Actor) -> None:
    """Copy the finished steps into the fork, lift its hold, and start it."""
    await tx.amend(ref.kind.flow, [key], await _tenant(tx, ref), held_at=None)
    (flow,) = await tx.rows(ref.kind.flow, [key])
    scene = await Scene.of(tx, ref.kind, flow, actor)
    await scene.look_at_all()
    kept = await _kept(tx, ref, set(shape.steps) - after(shape, name))
    for row, output in kept:
        keep(scene, scene.steps[row["name"]], row, output, f"kept from {ref.public_id}")
    if kept:
        advance.begin_flow(scene)
    await scene.write()
    await advance.restart(scene)


def _queue(old: Row) -> str | None:
    """Return the queue of the old flow, or None if it was the queue of one command.

    No worker serves such a queue again.
    """
    queue: str | None = old["queue"]
    return None if queue is None or queue.startswith(OWN_QUEUES) else queue


async def _tenant(tx: Transaction, ref: FlowRef) -> int:
    return int((await row_of(tx, ref, ("tenant_id",)))["tenant_id"])


async def _kept(tx: Transaction, ref: FlowRef, names: set[str]) -> list[tuple[Row, Output]]:
    meaning = phases(ref.kind.step)
    steps = [row for row in await tx.steps(ref.id, names=sorted(names)) if meaning[row["state"]] is Phase.SATISFIED]
    outputs = {one.name: one for one in await tx.outputs(ref.id, [row["name"] for row in steps])}
    return [(row, outputs[row["name"]]) for row in steps]
