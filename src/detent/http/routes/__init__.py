"""The routes, one file for each noun. A new one is a file beside this one and a line in `ROUTERS`."""

from __future__ import annotations

from fastapi import APIRouter

from detent.http.routes import (
    approvals,
    artifacts,
    breakers,
    bulk,
    crews,
    dead_letters,
    definitions,
    docs,
    events,
    health,
    jobs,
    lifecycles,
    queues,
    runs,
    schedules,
    signals,
    steps,
    templates,
    webhooks,
    why,
    workstreams,
)

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    docs.router,
    lifecycles.router,
    jobs.router,
    bulk.router,
    artifacts.router,
    signals.router,
    dead_letters.router,
    queues.router,
    definitions.router,
    runs.router,
    runs.short_router,
    workstreams.router,
    steps.router,
    approvals.router,
    templates.router,
    crews.router,
    breakers.router,
    schedules.router,
    webhooks.router,
    events.router,
    why.router,
)
