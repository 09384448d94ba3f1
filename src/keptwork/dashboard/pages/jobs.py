"""Pages of jobs: a list with filters, and one job with all of its details."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.core.guards import DEAD_LETTER_REASONS
from keptwork.core.ids import public_id
from keptwork.core.lifecycles import AGENT, CREW, JOB
from keptwork.core.lifecycles.job import RUNNING
from keptwork.core.validation import OWN_KINDS
from keptwork.dashboard.charts import timeline
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render, stream
from keptwork.diagnostics import diagnose
from keptwork.flows import commands as flows
from keptwork.flows.commands import FlowRef
from keptwork.http.auth import Principal, Reads, may
from keptwork.http.dependencies import After, Db, Text, WholeDb, opened, sealed
from keptwork.http.routes.dead_letters import LIST as DEAD_LETTER_LIST
from keptwork.http.routes.jobs import LIST, job, whole
from keptwork.jobs import commands_children, dead_letters
from keptwork.jobs import queries as jobs
from keptwork.jobs.commands_bulk import MOST_AT_ONCE
from keptwork.observability import stats
from keptwork.store import JobFilter, Store
from keptwork.store.contract.operations_search import LONGEST_TEXT

# What a job belongs to: its step and flow, crew, agent job, and parent; and its children.


Row = dict[str, Any]


class Ties(NamedTuple):
    """Public IDs of what a job belongs to, or None; the step by its name. `children` are rows."""

    flow: str | None
    step: str | None
    crew: str | None
    agent: str | None
    parent: str | None
    children: list[Row]


async def job_ties(store: Store, job: Row) -> Ties:
    """Return what a job belongs to, and its children."""
    steps = await store.steps_by_key([job["step_id"]]) if job["step_id"] is not None else []
    agents = [row for row in await store.agents_of_jobs([job["id"]]) if row["tenant_id"] == job["tenant_id"]]
    return Ties(
        FlowRef(flows.kind_of(steps[0]), steps[0]["flow_id"]).public_id if steps else None,
        steps[0]["name"] if steps else None,
        _named(CREW.name, job["crew_id"]),
        _named(AGENT.name, agents[0]["id"] if agents else None),
        _named(JOB.name, job["parent_id"]),
        await commands_children.listed(store, job["tenant_id"], job["id"]),
    )


def _named(entity: str, key: int | None) -> str | None:
    return None if key is None else public_id(entity, key)


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
    states = jobs.states_named([state] if state else [])
    wanted = JobFilter(caller.tenant_id, states, queue or None, kind or None, correlation_id or None)
    page = await jobs.page(store, wanted, after=opened(LIST, after), limit=AT_ONCE, text=text or None)
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
    story = await jobs.show(store, caller.tenant_id, id)
    told = {**whole(story), **_told(story.job, await store.now())}
    standing = await _standing(store, story)
    return render(request, caller, "job.html", live=stream(id=told["id"]), job=told, most=MOST_SHOWN, **standing)


async def _standing(store: Store, story: jobs.Story) -> dict[str, Any]:
    """Return the state of a job, why it waits, and what it belongs to."""
    row = story.job
    ended, ties = JOB.state(row["state"]).final, await job_ties(store, row)
    told = None if ended else await diagnose.explained(store, row["tenant_id"], public_id(JOB.name, row["id"]))
    return {
        "ended": ended,
        "running": row["state"] == RUNNING.name,
        "retried": row["state"] in jobs.RETRIED,
        "why": told.reasons if told else [],
        "line": timeline(story.events, await store.now()),
        "ties": ties,
        "children": [jobs.as_json(child) for child in ties.children],
    }


def _told(row: jobs.Row, now: int) -> dict[str, Any]:
    return {**job(row), "lately": jobs.lately(row, now), "succeeded": jobs.succeeded(row)}


def given(**query: str) -> dict[str, str]:
    """Return the filters of a list that are set, for its URL."""
    return {name: value for name, value in query.items() if value}


# The page of dead letters: by kind and reason, with redrives of one or many.


dead_letters_router = pages("/dead-letters")

MOST_GROUPS = 12


@dead_letters_router.get("")
async def list_dead_letters(
    request: Request,
    caller: Reads,
    store: Db,
    whole: WholeDb,
    queue: Chosen = "",
    kind: Chosen = "",
    reason_code: Chosen = "",
    text: Sought = "",
    after: After = None,
) -> Response:
    """List the dead letters of the tenant, newest first."""
    chosen = given(queue=queue, kind=kind, reason_code=reason_code)
    wanted = dead_letters.among(
        caller.tenant_id, queue=queue or None, kind=kind or None, reason_code=reason_code or None
    )
    page = await dead_letters.page(
        store, wanted, after=opened(DEAD_LETTER_LIST, after), limit=AT_ONCE, text=text or None
    )
    later = await dead_letters.later_jobs(store, caller.tenant_id, page.jobs)
    groups = await _groups(store, caller, whole)
    occurring = {one["reason"] for one in groups} | {reason_code}
    return render(
        request,
        caller,
        "dead_letters.html",
        live=EVERY_2_SECONDS,
        letters=[_dead_letter_told(row, later[row["id"]]) for row in page.jobs],
        next=sealed(DEAD_LETTER_LIST, page.next),
        after=after,
        query={**chosen, **given(text=text)},
        chosen=chosen,
        reasons=[("all", ""), *((code.replace("_", " "), code) for code in DEAD_LETTER_REASONS if code in occurring)],
        groups=groups[:MOST_GROUPS],
        again=0 if text else await _to_run_again(store, caller, wanted),
        most=MOST_AT_ONCE,
    )


def _dead_letter_told(row: dict[str, Any], later: list[int]) -> dict[str, Any]:
    """Return a dead letter, and whether its kind is internal. The page of an internal job shows its step."""
    return {**dead_letters.as_json(row, later), "own": row["kind"].startswith(OWN_KINDS)}


async def _groups(store: Store, caller: Principal, whole: Store) -> list[dict[str, Any]]:
    """Return the number of dead letters by kind and reason, most frequent first."""
    found = stats.as_json(await stats.current(store, caller.tenant_id, whole))["dead_letters"]
    told = [{**one, "known": one["reason"] in DEAD_LETTER_REASONS} for one in found]
    return sorted(told, key=lambda one: -one["count"])


async def _to_run_again(store: Store, caller: Principal, wanted: JobFilter) -> int:
    """Return how many dead letters were not yet rerun, up to the maximum of one redrive."""
    return await dead_letters.count(store, wanted, limit=MOST_AT_ONCE) if may(caller, "write") else 0
