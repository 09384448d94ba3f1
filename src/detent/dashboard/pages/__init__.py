"""The pages, one file for each noun. A new one is a file beside this one, a template, and a line in `ROUTERS`."""

from __future__ import annotations

from fastapi import APIRouter

from detent.dashboard.pages import approvals, flow, flows, overview

ROUTERS: tuple[APIRouter, ...] = (overview.router, flows.router, flow.router, approvals.router)
