"""Start a flow: create its row and those of its steps, and start the first steps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from keptwork.core import ids
from keptwork.core.durations import span_us
from keptwork.errors import FlowKeyReused
from keptwork.flows.compiled import KINDS, Kind, Library, is_another, shape_of
from keptwork.flows.definition import Flow
from keptwork.flows.plan import Shape
from keptwork.flows.steps.kind import retries_of
from keptwork.flows.transaction import Actor, Row, Scene, inputs_of
from keptwork.store.contract.flows_templates import Template
from keptwork.store.contract.records import ITSELF, Birth
from keptwork.store.contract.store import Reader, Transaction


async def launched(tx: Transaction, template: Template, inputs: Mapping[str, Any], *, actor: Actor, **how: Any) -> int:
    """Create a flow of a definition and return its key. Start its first steps unless `hold` is set."""
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
    """Create a flow as `launched` does, and return it as it is then.

    A nested flow that finishes immediately does not advance its parent flow: the caller must check. Pass `shape` if it
    is known, so that the definition is not parsed again.
    """
    from keptwork.flows import engine as advance

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
    """Create the steps, each after the steps that it depends on.

    Their order in the file does not matter. Moves of many steps in one batch are written in the order of the step keys.
    The log therefore shows the end of a step before the start of the next.
    """
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


# Idempotency keys of flows: reject a repeated key for a different flow.


MOST_NAMED = 5


class Wanted(NamedTuple):
    """A flow to start, with its inputs as given and with defaults.

    `definition` is None if the caller wants the newest version of a name instead of one definition.
    """

    template: Template
    given: Mapping[str, Any]
    inputs: Mapping[str, Any]
    webhook: str | None
    definition: Flow | None
    library: Library


async def insist(store: Reader, kind: Kind, earlier: Row, wanted: Wanted) -> None:
    """Raise `FlowKeyReused`, with the difference, if the flow of the key is not the wanted one."""
    differs = await _differs(store, earlier, wanted)
    if differs is not None:
        flow = ids.public(kind.flow.prefix, earlier["id"])
        raise FlowKeyReused(key=earlier["key"], flow=flow, kind=kind.name, what=differs)


async def _differs(store: Reader, earlier: Row, wanted: Wanted) -> str | None:
    name, place = wanted.template.name, (earlier["tenant_id"], earlier["template_id"])
    if earlier["name"] != name:
        return f"a flow {earlier['name']} and not {name}"
    if wanted.definition is not None and await is_another(store, *place, wanted.definition, wanted.library):
        return f"by another definition of {name}"
    if others := _other_inputs(earlier, wanted):
        return f"with other inputs: {', '.join(others[:MOST_NAMED])}{', …' if others[MOST_NAMED:] else ''}"
    return "and told no webhook or another of its end" if wanted.webhook not in (None, earlier["webhook"]) else None


def _other_inputs(earlier: Row, wanted: Wanted) -> list[str]:
    """Return the names of inputs that differ.

    For a newer version, only given inputs are compared, because it has its own defaults.
    """
    before, now = inputs_of(earlier), wanted.inputs
    newer = wanted.definition is None and earlier["template_id"] != wanted.template.id
    names = wanted.given if newer else {**before, **now}
    return [name for name in names if _said(before, name) != _said(now, name)]


def _said(inputs: Mapping[str, Any], name: str) -> str:
    """Return an input as text, so that true and 1 differ. A missing input equals null, as older flows stored it."""
    return json.dumps(inputs.get(name), sort_keys=True)
