"""The pages, one file per noun.

To add a page, add a file to this package, a template, and a line to `ROUTERS`.
"""

from __future__ import annotations

from fastapi import APIRouter

from keptwork.dashboard.pages import (
    agents,
    agents_costs,
    agents_crews,
    events,
    flows,
    flows_one,
    jobs,
    jobs_dead_letters,
    operations_approvals,
    operations_breakers,
    operations_schedules,
    overview,
    overview_lifecycles,
    workers,
)

ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    flows.router,
    flows_one.flow_router,
    operations_approvals.approvals_router,
    jobs.router,
    jobs_dead_letters.dead_letters_router,
    agents.router,
    agents_crews.crews_router,
    workers.router,
    operations_schedules.schedules_router,
    operations_breakers.breakers_router,
    agents_costs.costs_router,
    events.router,
    overview_lifecycles.lifecycles_router,
)
