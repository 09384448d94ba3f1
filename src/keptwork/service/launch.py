"""Starting a flow: its row, a row for each of its steps, and the steps that wait for none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keptwork.flow.shape import Shape
from keptwork.moments import span_us
from keptwork.service.definitions import KINDS, shape_of
from keptwork.service.flow_scene import Actor, Scene
from keptwork.service.step_jobs import retries_of
from keptwork.store.protocol import Transaction
from keptwork.store.records import ITSELF, Birth
from keptwork.store.templates import Template


async def launched(tx: Transaction, template: Template, inputs: Mapping[str, Any], *, actor: Actor, **how: Any) -> int:
    """Makes a flow of a definition, and lets its first steps go unless it is to be held; returns its key."""
    return (await scene_of(tx, template, inputs, actor=actor, **how)).id


async def scene_of(
    tx: Transaction,
    template: Template,
    inputs: Mapping[str, Any],
    *,
    actor: Actor,
    inside: Scene | None = None,
    step_id: int | None = None,
    key: str | None = None,
    hold: bool = False,
    webhook: str | None = None,
    queue: str | None = None,
    forked_from: int | None = None,
    resumes: bool = False,
    trace_id: str | None = None,
    shape: Shape | None = None,
) -> Scene:
    """The same; returns the flow as it is then. One inside another tells that one nothing: whoever starts it looks.
    Whoever knows the shape of the definition spares reading it."""
    from keptwork.service import advance

    kind, whole = KINDS[template.kind], shape or shape_of(template)
    definition = whole.flow
    now = await tx.now()
    columns: dict[str, Any] = {
        "template_id": template.id,
        "name": template.name,
        "inputs": json.dumps(dict(inputs), separators=(",", ":")),
        "key": key,
        "step_id": step_id,
        "webhook": webhook,
        "queue": queue if inside is None else inside.flow["queue"],
        "held_at": now if hold else None,
        "tree_id": None if inside is None else inside.tree,
        "wake_at": None if definition.timeout is None else now + span_us(definition.timeout),
        "forked_from": forked_from,
        "resumes": int(resumes),
    }
    if kind.name == "workstream":
        columns |= {"max_retries": definition.max_retries}
    told = ITSELF if inside is None else inside.flow["correlation_id"] or inside.public_id
    trace = trace_id if inside is None else inside.flow["trace_id"]
    birth = {"actor": actor.name, "reason": actor.reason, "correlation_id": told, "trace_id": trace}
    id = await tx.create(kind.flow, tenant_id=template.tenant_id, **birth, **columns)
    (flow,) = await tx.rows(kind.flow, [id])
    scene = Scene(tx, kind, flow, whole, actor)
    await tx.lock_trees([scene.tree])
    await _make_steps(scene)
    if not hold:
        scene.starting = True
        await advance.begin_at_roots(scene)
    return scene


async def _make_steps(scene: Scene) -> None:
    """Each after those it waits for, whatever their order in the file: what is written of many steps at once is written
    in the order of their keys, and so the log tells of the end of one before the beginning of the next."""
    rows = {
        step.id: {
            "flow_id": scene.id,
            "name": step.id,
            "position": place,
            "max_retries": retries_of(scene.kind.name, step),
        }
        for place, step in enumerate(scene.shape.flow.steps)
    }
    correlation = scene.flow["correlation_id"] or scene.public_id
    birth = Birth(scene.tenant_id, scene.actor.name, None, correlation, scene.flow["trace_id"])
    await scene.tx.create_many(scene.kind.step, [rows[name] for name in scene.shape.order], birth)
