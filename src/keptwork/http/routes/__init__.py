"""The routes, one file per noun.

To add a noun, add a file to this package and a line to `ROUTERS`.
"""

from __future__ import annotations

from fastapi import APIRouter

from keptwork.http.routes import (
    agents,
    approvals,
    breakers,
    budgets,
    crews,
    dead_letters,
    diagnostics,
    events,
    jobs,
    keys,
    queues,
    remote_jobs,
    remote_workers,
    runs,
    schedules,
    server,
    steps,
    supervision,
    templates,
    webhooks,
)

ROUTERS: tuple[APIRouter, ...] = (
    server.router,
    server.docs_router,
    server.lifecycles_router,
    jobs.router,
    dead_letters.bulk_router,
    jobs.artifacts_router,
    jobs.signals_router,
    dead_letters.router,
    queues.router,
    supervision.router,
    templates.definitions_router,
    runs.router,
    runs.short_router,
    runs.workstreams_router,
    steps.router,
    approvals.router,
    templates.router,
    crews.router,
    breakers.router,
    schedules.router,
    webhooks.router,
    events.router,
    diagnostics.router,
    agents.router,
    agents.skills_router,
    agents.profiles,
    budgets.router,
    budgets.spent,
    queues.limits_router,
    server.stats_router,
    keys.router,
    keys.mine,
    diagnostics.doctor_router,
    diagnostics.overrides_router,
    events.audit_router,
    remote_workers.router,
    remote_jobs.router,
)
