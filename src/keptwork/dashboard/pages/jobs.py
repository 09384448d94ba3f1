"""Pages of jobs: a list with filters, and one job with all of its details."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.core.ids_entities import public_id
from keptwork.core.lifecycles import JOB
from keptwork.core.lifecycles.job import RUNNING
from keptwork.dashboard.charts_timeline import timeline
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render, stream
from keptwork.dashboard.pages import jobs_ties
from keptwork.diagnostics import diagnose
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Text
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.jobs import LIST, job, whole
from keptwork.jobs import queries as service
from keptwork.store import JobFilter, Store
from keptwork.store.contract.operations_search import LONGEST_TEXT

router = pages("/jobs")

AT_ONCE = 50
MOST_SHOWN = 100
"""Maximum number of items of each list on the page of a job."""

STATES = (("all", ""), *((state.name.replace("_", " "), state.name) for state in JOB.states))

Chosen = Annotated[Text, Query(max_length=500)]
"""A filter of a list. An empty filter, as a form sends it, matches everything."""
Sought = Annotated[Text, Query(max_length=LONGEST_TEXT)]


@router.get("")
async def listing(
    request: Request,
    caller: Reads,
    store: Db,
    state: Chosen = "",
    queue: Chosen = "",
    kind: Chosen = "",
    correlation_id: Chosen = "",
    text: Sought = "",
    after: After = None,
) -> Response:
    """List the jobs of the tenant, newest first."""
    states = service.states_named([state] if state else [])
    wanted = JobFilter(caller.tenant_id, states, queue or None, kind or None, correlation_id or None)
    page = await service.page(store, wanted, after=opened(LIST, after), limit=AT_ONCE, text=text or None)
    now = await store.now()
    return render(
        request,
        caller,
        "jobs.html",
        live=EVERY_2_SECONDS,
        jobs=[_told(row, now) for row in page.jobs],
        next=sealed(LIST, page.next),
        after=after,
        query=given(state=state, queue=queue, kind=kind, correlation_id=correlation_id, text=text),
        states=STATES,
    )


@router.get("/{id}")
async def show(request: Request, id: str, caller: Reads, store: Db) -> Response:
    """Show one job with all of its details."""
    story = await service.show(store, caller.tenant_id, id)
    told = {**whole(story), **_told(story.job, await store.now())}
    standing = await _standing(store, story)
    return render(request, caller, "job.html", live=stream(id=told["id"]), job=told, most=MOST_SHOWN, **standing)


async def _standing(store: Store, story: service.Story) -> dict[str, Any]:
    """Return the state of a job, why it waits, and what it belongs to."""
    row = story.job
    ended, ties = JOB.state(row["state"]).final, await jobs_ties.job_ties(store, row)
    told = None if ended else await diagnose.explained(store, row["tenant_id"], public_id(JOB.name, row["id"]))
    return {
        "ended": ended,
        "running": row["state"] == RUNNING.name,
        "retried": row["state"] in service.RETRIED,
        "why": told.reasons if told else [],
        "line": timeline(story.events, await store.now()),
        "ties": ties,
        "children": [service.as_json(child) for child in ties.children],
    }


def _told(row: service.Row, now: int) -> dict[str, Any]:
    return {**job(row), "lately": service.lately(row, now), "succeeded": service.succeeded(row)}


def given(**query: str) -> dict[str, str]:
    """Return the filters of a list that are set, for its URL."""
    return {name: value for name, value in query.items() if value}
