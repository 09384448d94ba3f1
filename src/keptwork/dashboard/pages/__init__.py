"""The pages, one file per noun.

To add a page, add a file to this package, a template, and a line to `ROUTERS`.
"""

from __future__ import annotations

from fastapi import APIRouter

from keptwork.dashboard.pages import agents, events, flows, jobs, operations, overview, workers

ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    flows.router,
    flows.flow_router,
    operations.approvals_router,
    jobs.router,
    jobs.dead_letters_router,
    agents.router,
    agents.crews_router,
    workers.router,
    operations.schedules_router,
    operations.breakers_router,
    agents.costs_router,
    events.router,
    overview.lifecycles_router,
)
