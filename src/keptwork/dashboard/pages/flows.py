"""The page of runs and workstreams: one kind at a time, newest first, with states and progress."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.core.lifecycles import Lifecycle, Verb
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.flows import live_view_flow_progress
from keptwork.flows import queries as stories
from keptwork.flows.commands import FlowRef
from keptwork.flows.compiled import KINDS, Kind
from keptwork.flows.plan_phase import Phase
from keptwork.flows.report import plain_error
from keptwork.flows.transaction import Row
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Text
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.store import Store
from keptwork.store.contract.flows_steps import FlowFilter
from keptwork.store.contract.operations_search import LONGEST_TEXT

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
    counts = await live_view_flow_progress.counted(store, FlowRef(kind, row["id"]))
    far = {"done": counts[Phase.SATISFIED], "total": counts.total()}
    return {**stories.flow_json(kind, row), **far, "wrong": plain_error(row["error"])}
