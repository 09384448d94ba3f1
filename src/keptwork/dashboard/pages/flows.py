"""The page of runs and workstreams: one kind at a time, newest first, with states and progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from fastapi import Query, Request
from markupsafe import Markup
from starlette.responses import Response

from keptwork.access.scopes import approver
from keptwork.core.lifecycles import Lifecycle, Verb
from keptwork.dashboard import flow_graph
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render, stream, tones
from keptwork.diagnostics import diagnose
from keptwork.diagnostics.why_flows import FlowCause
from keptwork.diagnostics.why_jobs import Reason
from keptwork.flows import commands as flows
from keptwork.flows import commands_flow_deeds, live_view
from keptwork.flows import queries as stories
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import KINDS, Kind, shape
from keptwork.flows.graph import Before
from keptwork.flows.live_view import described
from keptwork.flows.plan import Phase, Shape, phases
from keptwork.flows.report import plain_error
from keptwork.flows.transaction import Row
from keptwork.http.auth import Principal, Reads, may
from keptwork.http.dependencies import After, Db, Text, opened, sealed
from keptwork.http.routes.flows import whole
from keptwork.store import Store
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.operations_search import LONGEST_TEXT
from keptwork.webhooks import outbox

router = pages("/flows")

AT_ONCE = 50
KIND_NAMES = (("Workstreams", "workstream"), ("Runs", "run"))
GROUPS = (
    ("All", "all"),
    ("Active", "active"),
    ("Waiting for somebody", "asking"),
    ("Failed", "failed"),
    ("Ended", "ended"),
)

Wanted = Literal["all", "active", "asking", "failed", "ended"]


@router.get("")
async def listing(
    request: Request,
    caller: Reads,
    store: Db,
    kind: Literal["workstream", "run"] = "workstream",
    state: Wanted = "all",
    text: Annotated[Text, Query(max_length=LONGEST_TEXT)] = "",
    after: After = None,
) -> Response:
    """List the flows of a kind."""
    one, text = KINDS[kind], text.strip()
    page = await _page(store, one, caller.tenant_id, state, text or None, after)
    return render(
        request,
        caller,
        "flows.html",
        live=EVERY_2_SECONDS,
        flows=[await _shown(store, one, row) for row in page.flows],
        next=sealed(_list(one), page.next),
        kinds=KIND_NAMES,
        groups=GROUPS,
        chosen={"kind": kind, "state": state, "text": text},
        first=after is None,
    )


async def _page(
    store: Store, kind: Kind, tenant_id: int, state: Wanted, text: str | None, after: str | None
) -> stories.Page:
    place = opened(_list(kind), after)
    if state == "asking":
        return await stories.asking(store, kind, tenant_id, after=place, limit=AT_ONCE, text=text)
    wanted = FlowFilter(tenant_id, states(kind.flow, state))
    return await stories.page(store, kind, wanted, after=place, limit=AT_ONCE, text=text)


def _list(kind: Kind) -> str:
    """Return the name of a list for its cursors, so that a cursor of one kind is invalid for the other."""
    return f"{kind.name}s"


def states(lifecycle: Lifecycle, wanted: str) -> tuple[str, ...] | None:
    """Return the states of a group, or None for all states.

    >>> from keptwork.core.lifecycles import RUN, WORKSTREAM
    >>> states(RUN, "active"), states(WORKSTREAM, "failed")
    (('PENDING', 'RUNNING', 'WAITING_APPROVAL'), ('S_FAILED',))
    """
    if wanted == "all":
        return None
    failed = {move.target.name for move in lifecycle.moves if move.verb is Verb.FAIL}
    groups = {
        "failed": failed,
        "ended": {state.name for state in lifecycle.states if state.final},
        "active": {state.name for state in lifecycle.states if not state.final} - failed,
    }
    return tuple(state.name for state in lifecycle.states if state.name in groups[wanted])


async def _shown(store: Store, kind: Kind, row: Row) -> dict[str, Any]:
    counts = await live_view.counted(store, FlowRef(kind, row["id"]))
    far = {"done": counts[Phase.SATISFIED], "total": counts.total()}
    return {**stories.flow_json(kind, row), **far, "wrong": plain_error(row["error"])}


# The steps of a flow on its page: their states, results, inner flows, and possible actions.


ELEMENTS_SHOWN = 20
FLOWS_SHOWN = 20
LONGEST_OUTPUT = 2_000
_ORDER = (Phase.FAILED, Phase.ACTIVE, Phase.WAITING, Phase.GONE, Phase.SATISFIED)
"""The order in which the items of a list are shown."""


@dataclass(frozen=True)
class FlowSteps:
    """The data of the steps of a flow.

    `about` describes what each step does. `outputs` has the outputs of the shown steps. `answers` returns whether the
    user can decide an approval for a reviewer, or for anyone if the argument is None.
    """

    story: stories.Story
    shape: Shape
    about: Mapping[str, str]
    outputs: Mapping[str, Any]
    answers: Callable[[str | None], bool]
    now: int

    def shown(self, row: Row) -> dict[str, Any]:
        """Return a step with all of its details."""
        return {**self._line(row), **self._done(row), **self._inside(row), **self._rights(row["name"])}

    def drawing(self, shown: Sequence[Mapping[str, Any]]) -> Markup | None:
        """Return the graph of the steps, or None if it cannot be drawn."""
        return flow_graph.drawn([_box(step) for step in shown], self.shape.before)

    def _line(self, row: Row) -> dict[str, Any]:
        """Return the state of a step. Items of a list have no further details."""
        return {
            **stories.step_json(row, self.story.costs.get(row["id"])),
            "took_us": stories.took_us(row, self.now),
            "remark": stories.remark(row),
            "deeds": commands_flow_deeds.of_step(row, self.story.flow),
            "begun": self._phase(row) is not Phase.WAITING,
            "asks": row["name"] in self._asking,
            "tone": "asks" if row["name"] in self._asking else tones(self.story.kind.step)[row["state"]],
            "flows": [one.public_id for one in self.story.inner.get(row["id"], [])[:FLOWS_SHOWN]],
        }

    def _done(self, row: Row) -> dict[str, Any]:
        """Return what a step does, and its output if it is short."""
        name = row["name"]
        output = stories.as_text(self.outputs[name]) if name in self.outputs else None
        return {
            "about": self.about[name],
            "after": self.shape.before[name],
            "output": None if output is None else output[:LONGEST_OUTPUT],
            "cut": output is not None and len(output) > LONGEST_OUTPUT,
        }

    def _inside(self, row: Row) -> dict[str, Any]:
        """Return the items of a step, or the most relevant of many."""
        elements = self._elements.get(row["id"], [])
        telling = sorted(elements, key=lambda one: _ORDER.index(self._phase(one)))[:ELEMENTS_SHOWN]
        done = sum(self._phase(one) is Phase.SATISFIED for one in elements)
        return {"elements": [self._line(one) for one in telling], "done": done, "total": len(elements)}

    def _rights(self, name: str) -> dict[str, bool]:
        """Return whether the user can skip the step, or fork at it.

        Skipping an approval decides it. A fork that keeps earlier approvals gives them again.
        """
        kept = (one for one in self._of_others if one != name and not self._before.comes(name, one))
        return {"may_skip": name not in self._of_others, "may_fork": not any(kept)}

    def _phase(self, row: Row) -> Phase:
        return phases(self.story.kind.step)[row["state"]]

    @cached_property
    def _asking(self) -> set[str]:
        return {one.step for one in self.story.asked}

    @cached_property
    def _elements(self) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {}
        for row in self.story.steps:
            if row["parent_id"] is not None:
                found.setdefault(row["parent_id"], []).append(row)
        return found

    @cached_property
    def _of_others(self) -> set[str]:
        """The approval steps that the user cannot decide."""
        gates = {step.id: step.approval for step in self.shape.steps.values() if step.approval is not None}
        return {name for name, gate in gates.items() if not self.answers(gate.by)}

    @cached_property
    def _before(self) -> Before:
        return Before(self.shape.before)


def _box(step: Mapping[str, Any]) -> flow_graph.Box:
    state = "asks" if step["asks"] else step["state"].removeprefix("S_").lower().replace("_", " ")
    count = f"{step['done']}/{step['total']}" if step["total"] else ""
    return flow_graph.Box(step["name"], step["tone"], state, step["about"], count)


# The page of one run or workstream: its progress, graph, steps, outputs, approvals, and history.


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
    found = live_view.as_json(await live_view.read(store, ref))
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
