"""The page of costs and budgets."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from keptwork.agents import budget_caps, budget_caps_costs
from keptwork.core.durations import moment_us
from keptwork.core.money import DAY_US, Scope, day_of
from keptwork.dashboard.page import EVERY_2_SECONDS, pages, render
from keptwork.errors import BadInput
from keptwork.http.auth import Reads
from keptwork.http.dependencies import After, Db, Text
from keptwork.http.dependencies_cursors import opened, sealed
from keptwork.http.routes.budgets import LIST as BUDGET_LIST

TODAY = "today"
SINCE = (("today", TODAY), ("7 days", "7d"), ("30 days", "30d"))
BY = tuple((name, name) for name in budget_caps_costs.BY if name != "tenant")
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
    spent = await budget_caps_costs.read(store, caller.tenant_id, by, _begin(since, await store.now()), own_only=True)
    page = await budget_caps.page(store, caller.tenant_id, scope=scope or None, after=opened(BUDGET_LIST, after))
    return render(
        request,
        caller,
        "costs.html",
        live=EVERY_2_SECONDS,
        spent=budget_caps_costs.spent_json(spent),
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
