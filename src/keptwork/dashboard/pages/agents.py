"""Pages of agent jobs: the list, and one with its task, conversation, result, and cost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.agents import budget_caps, transcripts
from keptwork.agents import commands as agents
from keptwork.audit import events
from keptwork.core.durations import moment_us
from keptwork.core.ids import states_named
from keptwork.core.lifecycles import AGENT, CREW
from keptwork.core.money import DAY_US, Scope, day_of
from keptwork.crews import commands as crews
from keptwork.crews.engine import quotas
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render, states_to_choose
from keptwork.errors import BadInput, NotFound
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Text, opened, sealed
from keptwork.http.routes.agents import LIST, TRANSCRIPT, line
from keptwork.http.routes.budgets import LIST as BUDGET_LIST
from keptwork.http.routes.budgets import MOST_CALLS
from keptwork.http.routes.crews import LIST as CREW_LIST
from keptwork.http.routes.events import shown
from keptwork.store import EventFilter, Store
from keptwork.store.contract.budgets import BudgetView

router = pages("/agents")

State = Annotated[Text, Query(max_length=50)]


@router.get("")
async def listing(request: Request, caller: Reads, store: Db, state: State = "", after: After = None) -> Response:
    """List agent jobs, newest first."""
    states = states_named(AGENT, [state] if state else [])
    page = await agents.page(store, caller.tenant_id, states=states, after=opened(LIST, after))
    return render(
        request,
        caller,
        "agents.html",
        live=EVERY_2_SECONDS,
        agents=[agents.as_json(row) for row in page.agents],
        next=sealed(LIST, page.next),
        state=state,
        states=states_to_choose(AGENT),
    )


@router.get("/{id}")
async def show(request: Request, id: str, caller: Reads, store: Db, after: After = None) -> Response:
    """Show one agent job.

    Messages of its conversation are not in the event stream, so the page of an unfinished agent job polls.
    """
    story = await agents.story(store, caller.tenant_id, id)
    agent = agents.as_json(story.agent)
    over = AGENT.state(agent["state"]).final
    place = opened(TRANSCRIPT, after)
    said = await transcripts.page(store, caller.tenant_id, story.agent["job_id"] or 0, after=place)
    budget = await _budget(store, caller.tenant_id, agent["job_id"])
    calls = [] if budget is None else await budget_caps.last_calls(store, budget.budget, MOST_CALLS)
    return render(
        request,
        caller,
        "agent.html",
        live="" if over else EVERY_2_SECONDS,
        agent=agent,
        over=over,
        result=story.result,
        audit=None if story.audit is None else agents.audit_as_json(story.audit),
        events=[shown(event) for event in story.events],
        said=[line(one) for one in said.said],
        begun=place is not None,
        next=sealed(TRANSCRIPT, said.next),
        budget=None if budget is None else budget_caps.as_json(budget),
        calls=[budget_caps.call_json(call) for call in calls],
    )


async def _budget(store: Store, tenant_id: int, job: str | None) -> BudgetView | None:
    """Return the budget of the job that runs an agent job, or None before its first model call."""
    try:
        return None if job is None else await budget_caps.find(store, tenant_id, job)
    except NotFound:
        return None


# Pages of crews: the list, and one with the tree of its inner crews and shares.


MOST_CREWS = 200
"""Maximum number of crews in the tree. The API returns all of them."""

crews_router = pages("/crews")

Inside = Annotated[bool, Query()]


@crews_router.get("")
async def list_crews(
    request: Request, caller: Reads, store: Db, state: State = "", inside: Inside = False, after: After = None
) -> Response:
    """List crews, newest first, with the quotas of workers."""
    states = states_named(CREW, [state] if state else [])
    page = await crews.page(store, caller.tenant_id, states=states, inside=inside, after=opened(CREW_LIST, after))
    return render(
        request,
        caller,
        "crews.html",
        live=EVERY_2_SECONDS,
        crews=[crews.as_json(row) for row in page.crews],
        next=sealed(CREW_LIST, page.next),
        state=state,
        states=states_to_choose(CREW),
        inside="true" if inside else "",
        quotas=crews.quotas_as_json(await quotas(store, caller.tenant_id)),
    )


@crews_router.get("/{id}")
async def show_crew(request: Request, id: str, caller: Reads, store: Db) -> Response:
    """Show one crew.

    Its shares and inner crews have their own event streams, so the page of an unfinished crew polls.
    """
    crew = crews.tree_as_json(await crews.tree(store, caller.tenant_id, id))
    over = CREW.state(crew["state"]).final
    tree = list(islice(_flat(crew), MOST_CREWS + 1))
    moves = await events.page(store, EventFilter(caller.tenant_id, CREW.name, crews.key_of(id)))
    by_depth = {one["depth"]: one for one in crews.quotas_as_json(await quotas(store, caller.tenant_id))}
    return render(
        request,
        caller,
        "crew.html",
        live="" if over else EVERY_2_SECONDS,
        crew=crew,
        over=over,
        tree=tree[:MOST_CREWS],
        cut=len(tree) > MOST_CREWS,
        quota=by_depth.get(crew["depth"]),  # a rejected crew can be deeper than the maximum
        events=[shown(event) for event in moves.events],
    )


def _flat(crew: crews.Row, level: int = 0) -> Iterator[tuple[int, crews.Row]]:
    """Yield a crew and its inner crews with their depth, parents first."""
    yield level, crew
    for one in crew["inside"]:
        yield from _flat(one, level + 1)


# The page of costs and budgets.


TODAY = "today"
SINCE = (("today", TODAY), ("7 days", "7d"), ("30 days", "30d"))
BY = tuple((name, name) for name in budget_caps.BY if name != "tenant")
"""Costs by tenant are omitted, because a user sees only the costs of one tenant."""

SCOPES = (("all", ""), *((scope.value, scope.value) for scope in Scope))
MOST_LINES = 100

Choice = Annotated[Text, Query(max_length=20)]

costs_router = pages("/costs")


@costs_router.get("")
async def overview(
    request: Request,
    caller: Reads,
    store: Db,
    since: Choice = TODAY,
    by: Choice = "model",
    scope: Choice = "",
    after: After = None,
) -> Response:
    """Show the costs, and one page of budgets."""
    spent = await budget_caps.read(store, caller.tenant_id, by, _begin(since, await store.now()), own_only=True)
    page = await budget_caps.page(store, caller.tenant_id, scope=scope or None, after=opened(BUDGET_LIST, after))
    return render(
        request,
        caller,
        "costs.html",
        live=EVERY_2_SECONDS,
        spent=budget_caps.spent_json(spent),
        most=max((line.cost.micros for line in spent.lines), default=0),
        longest=MOST_LINES,
        since=since,
        by=by,
        scope=scope,
        choices={"since": SINCE, "by": BY, "scope": SCOPES},
        budgets=[{**budget_caps.as_json(one), "command": budget_caps.command(one.budget)} for one in page.budgets],
        next=sealed(BUDGET_LIST, page.next),
    )


def _begin(since: str, now: int) -> int:
    """Return the start of a period. Days are in UTC, as in budgets."""
    if since not in [value for _, value in SINCE]:
        raise BadInput(what=f"costs are not shown since {since!r}, but since {', '.join(value for _, value in SINCE)}")
    return day_of(now) * DAY_US if since == TODAY else moment_us(since, now)
