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
    flows_one.router,
    operations_approvals.router,
    jobs.router,
    jobs_dead_letters.router,
    agents.router,
    agents_crews.router,
    workers.router,
    operations_schedules.router,
    operations_breakers.router,
    agents_costs.router,
    events.router,
    overview_lifecycles.router,
)
