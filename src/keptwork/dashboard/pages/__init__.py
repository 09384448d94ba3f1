"""The pages, one file per noun.

To add a page, add a file to this package, a template, and a line to `ROUTERS`.
"""

from __future__ import annotations

from fastapi import APIRouter

from keptwork.dashboard.pages import (
    agents,
    approvals,
    breakers,
    costs,
    crews,
    dead_letters,
    events,
    flow,
    flows,
    jobs,
    lifecycles,
    overview,
    schedules,
    workers,
)

ROUTERS: tuple[APIRouter, ...] = (
    overview.router,
    flows.router,
    flow.router,
    approvals.router,
    jobs.router,
    dead_letters.router,
    agents.router,
    crews.router,
    workers.router,
    schedules.router,
    breakers.router,
    costs.router,
    events.router,
    lifecycles.router,
)
