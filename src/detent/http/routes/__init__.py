"""The routes, one file for each noun. A new one is a file beside this one and a line in `ROUTERS`."""

from __future__ import annotations

from fastapi import APIRouter

from detent.http.routes import dead_letters, docs, events, health, jobs, lifecycles, queues, why

ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    docs.router,
    lifecycles.router,
    jobs.router,
    dead_letters.router,
    queues.router,
    events.router,
    why.router,
)
