"""The routes, one file for each noun. A new one is a file beside this one and a line in `ROUTERS`."""

from __future__ import annotations

from fastapi import APIRouter

from detent.http.routes import (
    artifacts,
    bulk,
    dead_letters,
    docs,
    events,
    health,
    jobs,
    lifecycles,
    queues,
    remote_jobs,
    signals,
    why,
    workers,
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
    events.router,
    why.router,
    workers.router,
    remote_jobs.router,
)
