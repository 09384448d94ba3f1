"""The routes, one file for each noun. A new one is a file beside this one and a line in `ROUTERS`."""

from __future__ import annotations

from fastapi import APIRouter

from detent.http.routes import (
    agent_jobs,
    artifacts,
    audit,
    budgets,
    bulk,
    dead_letters,
    docs,
    doctor,
    events,
    health,
    jobs,
    keys,
    lifecycles,
    limits,
    overrides,
    queues,
    signals,
    skills,
    stats,
    supervisor,
    why,
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
    supervisor.router,
    events.router,
    why.router,
    agent_jobs.router,
    skills.router,
    skills.profiles,
    budgets.router,
    budgets.spent,
    limits.router,
    stats.router,
    keys.router,
    keys.mine,
    doctor.router,
    overrides.router,
    audit.router,
)
