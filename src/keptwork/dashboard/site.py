"""Add the dashboard to a server: pages under /ui, static files, and a redirect from the root."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from keptwork.dashboard import page_assets, site_session
from keptwork.dashboard.page import ROOT, lost
from keptwork.dashboard.pages import ROUTERS


def install(app: FastAPI) -> None:
    """Add every page of the dashboard to an application."""
    app.router.routes.append(Route("/", _to_dashboard, methods=["GET"]))
    app.include_router(page_assets.router)
    app.include_router(site_session.session_router)
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.append(Route(f"{ROOT}/{{rest:path}}", lost, methods=["GET"]))


async def _to_dashboard(request: Request) -> Response:
    """Redirect to the dashboard. Browsers keep the fragment of the URL, where `keptwork dev` has its token."""
    return RedirectResponse(f"{ROOT}/", 303)
