"""One run or workstream: how far it is, its graph, its steps and what came of them, what it asks, what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from detent.api_key import approver
from detent.dashboard import graph
from detent.dashboard.looks import tones
from detent.dashboard.page import pages, render, stream
from detent.flow.graph import Before
from detent.flow.phase import Phase, phases
from detent.flow.shape import Shape
from detent.http.auth import Principal, Reads, may
from detent.http.cursors import opened, sealed
from detent.http.pages import After, Db
from detent.http.routes.flows import whole
from detent.service import flow_deeds, flow_progress, flows, webhooks, whys
from detent.service import flow_stories as stories
from detent.service.definitions import shape_of
from detent.service.flow_scene import Row
from detent.service.flow_view import described
from detent.service.flows import FlowRef
from detent.service.why import Reason
from detent.service.why_flows import FlowCause
from detent.store import Store

router = pages("/flows")

STEPS_AT_ONCE = graph.MOST_STEPS
"""As many as are drawn, so that whatever a box leads to is there."""

ELEMENTS_SHOWN = 20
FLOWS_SHOWN = 20
FORKS_SHOWN = 20
WEBHOOKS_SHOWN = 10
LONGEST_OUTPUT = 2_000
STEPS = "steps of a flow"


@router.get("/{id}")
async def show(request: Request, id: str, caller: Reads, store: Db, after: After = None) -> Response:
    """Everything about one flow."""
    ref = await flows.found(store, id, caller.tenant_id)
    story = await stories.story(store, ref)
    own = [row for row in story.steps if row["parent_id"] is None]
    start = _start(own, opened(STEPS, after))
    page = own[start : start + STEPS_AT_ONCE]
    shape = None if story.template is None else shape_of(story.template)
    about = {} if shape is None else await described(store, caller.tenant_id, shape.flow)
    told = whole(story)
    over = ref.kind.flow.state(told["state"]).final
    progress = flow_progress.as_json(await flow_progress.read(store, ref))
    hooks = await webhooks.page(store, caller.tenant_id, flow=ref.public_id, limit=WEBHOOKS_SHOWN)
    steps = await _steps(store, caller, ref, story, page, shape, about)
    return render(
        request,
        caller,
        "flow.html",
        live=stream(correlation_id=told["correlation_id"] or ref.public_id),
        flow=told,
        over=over,
        deeds=flow_deeds.of_flow(ref.kind, story.flow),
        api=f"/api/{ref.kind.name}s/{ref.public_id}",
        progress=progress,
        running=max(0, progress["running"] - len({one.step for one in story.asked})),
        reasons=[] if over else await _reasons(store, caller, ref, asked=bool(story.asked)),
        drawing=None if shape is None or len(own) > len(page) else _drawing(steps, shape),
        steps=steps,
        steps_in_all=len(own),
        first=start + 1,
        next=sealed(STEPS, page[-1]["name"] if start + len(page) < len(own) else None),
        questions=[{**one, "mine": may(caller, approver(one["scope"]))} for one in told["questions"]],
        names={one["id"]: one["name"] for one in told["steps"]},
        forks=told["forks"][:FORKS_SHOWN],
        webhooks=[webhooks.as_json(one) for one in hooks.deliveries],
    )


async def _reasons(store: Store, caller: Principal, ref: FlowRef, *, asked: bool) -> list[Reason]:
    """What is in its way, but for the questions that are shown anyway."""
    found = (await whys.explained(store, caller.tenant_id, ref.public_id)).reasons
    return [one for one in found if not asked or one.cause is not FlowCause.ASKED]


def _start(own: Sequence[Row], after: str | None) -> int:
    """Where a page of steps begins."""
    return next((place + 1 for place, row in enumerate(own) if row["name"] == after), 0)


async def _steps(
    store: Store,
    caller: Principal,
    ref: FlowRef,
    story: stories.Story,
    page: Sequence[Row],
    shape: Shape | None,
    about: Mapping[str, str],
) -> list[dict[str, Any]]:
    """The steps as they are shown, each with what is inside it."""
    now = await store.now()
    outputs = await stories.small_outputs(store, ref, [row["name"] for row in page])
    asking = {one.step for one in story.asked}
    others = _others_to_answer(caller, shape)
    earlier = Before(shape.before) if others and shape is not None else None
    elements: dict[int, list[Row]] = {}
    for row in story.steps:
        if row["parent_id"] is not None:
            elements.setdefault(row["parent_id"], []).append(row)

    def shown(row: Row) -> dict[str, Any]:
        return {
            **stories.step_json(row, story.costs.get(row["id"])),
            "took_us": stories.took_us(row, now),
            "remark": stories.remark(row),
            "deeds": flow_deeds.of_step(row, story.flow),
            "begun": phases(ref.kind.step)[row["state"]] is not Phase.WAITING,
            "tone": "asks" if row["name"] in asking else tones(ref.kind.step)[row["state"]],
            "asks": row["name"] in asking,
            "flows": [one.public_id for one in story.inner.get(row["id"], [])[:FLOWS_SHOWN]],
        }

    def with_inside(row: Row) -> dict[str, Any]:
        inside, said = elements.get(row["id"], []), None if shape is None else shape.steps.get(row["name"])
        done = sum(phases(ref.kind.step)[one["state"]] is Phase.SATISFIED for one in inside)
        kept = [one for one in others if one != row["name"] and not (earlier and earlier.comes(row["name"], one))]
        output = stories.as_text(outputs[row["name"]]) if row["name"] in outputs else None
        return {
            **shown(row),
            "kind": None if said is None else said.kind,
            "about": about.get(row["name"], ""),
            "after": () if shape is None else shape.before.get(row["name"], ()),
            "may_skip": row["name"] not in others,
            "may_fork": not kept,
            "output": None if output is None else output[:LONGEST_OUTPUT],
            "cut": output is not None and len(output) > LONGEST_OUTPUT,
            "done": done,
            "total": len(inside),
            "elements": [shown(one) for one in _telling(ref, inside)],
        }

    return [with_inside(row) for row in page]


def _others_to_answer(caller: Principal, shape: Shape | None) -> set[str]:
    """The steps that ask what this key may not answer. Nor may it skip them, or keep their answers in a fork."""
    gates = {} if shape is None else {step.id: step.approval for step in shape.steps.values() if step.approval}
    return {name for name, gate in gates.items() if not may(caller, approver(gate.by))}


def _telling(ref: FlowRef, elements: Sequence[Row]) -> list[Row]:
    """The first elements of a list, those that failed or run before those that wait or are done."""
    order = {Phase.FAILED: 0, Phase.ACTIVE: 1, Phase.WAITING: 2, Phase.GONE: 3, Phase.SATISFIED: 4}
    return sorted(elements, key=lambda row: order[phases(ref.kind.step)[row["state"]]])[:ELEMENTS_SHOWN]


def _drawing(steps: Sequence[Mapping[str, Any]], shape: Shape) -> Any:
    boxes = [
        graph.Box(
            step["name"],
            step["tone"],
            "asks" if step["asks"] else step["state"].removeprefix("S_").lower().replace("_", " "),
            step["about"],
            f"{step['done']}/{step['total']}" if step["total"] else "",
        )
        for step in steps
    ]
    return graph.drawn(boxes, shape.before)
