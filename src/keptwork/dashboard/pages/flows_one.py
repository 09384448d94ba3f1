"""The page of one run or workstream: its progress, graph, steps, outputs, approvals, and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import Request
from starlette.responses import Response

from keptwork.access.scopes import approver
from keptwork.dashboard import flow_graph
from keptwork.dashboard.page import pages, render, stream
from keptwork.dashboard.pages.flows_steps import FlowSteps
from keptwork.diagnostics import diagnose
from keptwork.diagnostics.why_flows import FlowCause
from keptwork.diagnostics.why_jobs import Reason
from keptwork.flows import commands as flows
from keptwork.flows import commands_flow_deeds, live_view_flow_progress
from keptwork.flows import queries as stories
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import shape
from keptwork.flows.live_view import described
from keptwork.flows.transaction import Row
from keptwork.http.auth import Principal, Reads, may
from keptwork.http.dependencies import After, Db
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.flows import whole
from keptwork.store import Store
from keptwork.webhooks import outbox

flow_router = pages("/flows")

STEPS = "steps of a flow"
STEPS_AT_ONCE = flow_graph.MOST_STEPS
"""As many steps as the graph shows, so that every box links to a row."""

FORKS_SHOWN = 20
WEBHOOKS_SHOWN = 10


@flow_router.get("/{id}")
async def show(request: Request, id: str, caller: Reads, store: Db, after: After = None) -> Response:
    """Show one flow with all of its details."""
    ref = await flows.found(store, id, caller.tenant_id)
    story = await stories.story(store, ref)
    told = whole(story)
    hooks = await outbox.page(store, caller.tenant_id, flow=ref.public_id, limit=WEBHOOKS_SHOWN)
    return render(
        request,
        caller,
        "flow.html",
        live=stream(correlation_id=told["correlation_id"] or ref.public_id),
        flow=told,
        over=ref.kind.flow.state(told["state"]).final,
        api=f"/api/{ref.kind.name}s/{ref.public_id}",
        deeds=commands_flow_deeds.of_flow(ref.kind, story.flow),
        questions=[{**one, "mine": may(caller, approver(one["scope"]))} for one in told["questions"]],
        reasons=await _reasons(store, caller, ref, story),
        names={one["id"]: one["name"] for one in told["steps"]},
        forks=told["forks"][:FORKS_SHOWN],
        webhooks=[outbox.as_json(one) for one in hooks.deliveries],
        **await _progress(store, ref, story),
        **await _steps(store, caller, ref, story, opened(STEPS, after)),
    )


async def _progress(store: Store, ref: FlowRef, story: stories.Story) -> dict[str, Any]:
    """Return the progress. A step that waits for an approval does not count as running."""
    found = live_view_flow_progress.as_json(await live_view_flow_progress.read(store, ref))
    return {"progress": found, "running": max(0, found["running"] - len({one.step for one in story.asked}))}


async def _reasons(store: Store, caller: Principal, ref: FlowRef, story: stories.Story) -> list[Reason]:
    """Return what blocks the flow, without the approvals that the page shows anyway."""
    if ref.kind.flow.state(story.flow["state"]).final:
        return []
    found = (await diagnose.explained(store, caller.tenant_id, ref.public_id)).reasons
    return [one for one in found if not story.asked or one.cause is not FlowCause.ASKED]


async def _steps(
    store: Store, caller: Principal, ref: FlowRef, story: stories.Story, after: str | None
) -> dict[str, Any]:
    """Return a page of the flow's own steps, and the graph if all steps are on one page."""
    own = [row for row in story.steps if row["parent_id"] is None]
    start = _start(own, after)
    page = own[start : start + STEPS_AT_ONCE]
    whole = await shape(store, caller.tenant_id, story.flow["template_id"])
    steps = FlowSteps(
        story,
        whole,
        await described(store, caller.tenant_id, whole.flow),
        await stories.small_outputs(store, ref, [row["name"] for row in page]),
        lambda who: may(caller, approver(who)),
        await store.now(),
    )
    shown = [steps.shown(row) for row in page]
    return {
        "steps": shown,
        "steps_in_all": len(own),
        "first": start + 1,
        "next": sealed(STEPS, page[-1]["name"] if start + len(page) < len(own) else None),
        "drawing": steps.drawing(shown) if len(page) == len(own) else None,
    }


def _start(own: Sequence[Row], after: str | None) -> int:
    """Return the index of the first step of a page."""
    return next((place + 1 for place, row in enumerate(own) if row["name"] == after), 0)
