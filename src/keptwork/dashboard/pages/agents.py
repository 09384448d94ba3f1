"""Pages of agent jobs: the list, and one with its task, conversation, result, and cost."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.agents import budget_caps, transcripts
from keptwork.agents import commands as service
from keptwork.core.ids_entities import states_named
from keptwork.core.lifecycles import AGENT
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.dashboard.page_looks import states_to_choose
from keptwork.errors import NotFound
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Text
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.agents import LIST, TRANSCRIPT, line
from keptwork.http.routes.budgets import MOST_CALLS
from keptwork.http.routes.events import shown
from keptwork.store import Store
from keptwork.store.contract.budgets import BudgetView

router = pages("/agents")

State = Annotated[Text, Query(max_length=50)]


@router.get("")
async def listing(request: Request, caller: Reads, store: Db, state: State = "", after: After = None) -> Response:
    """List agent jobs, newest first."""
    states = states_named(AGENT, [state] if state else [])
    page = await service.page(store, caller.tenant_id, states=states, after=opened(LIST, after))
    return render(
        request,
        caller,
        "agents.html",
        live=EVERY_2_SECONDS,
        agents=[service.as_json(row) for row in page.agents],
        next=sealed(LIST, page.next),
        state=state,
        states=states_to_choose(AGENT),
    )


@router.get("/{id}")
async def show(request: Request, id: str, caller: Reads, store: Db, after: After = None) -> Response:
    """Show one agent job.

    Messages of its conversation are not in the event stream, so the page of an unfinished agent job polls.
    """
    story = await service.story(store, caller.tenant_id, id)
    agent = service.as_json(story.agent)
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
        audit=None if story.audit is None else service.audit_as_json(story.audit),
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
