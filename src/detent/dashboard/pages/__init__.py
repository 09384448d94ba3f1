"""The pages, one file for each noun. A new one is a file beside this one, a template, and a line in `ROUTERS`."""

from __future__ import annotations

from fastapi import APIRouter

from detent.dashboard.pages import dead_letters, jobs, overview, workers

ROUTERS: tuple[APIRouter, ...] = (overview.router, jobs.router, dead_letters.router, workers.router)
