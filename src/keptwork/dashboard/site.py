"""Where the dashboard is put onto a server: its pages under /ui, its files, and the way there from the root."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from keptwork.dashboard import assets, session
from keptwork.dashboard.page import ROOT, lost
from keptwork.dashboard.pages import ROUTERS


def install(app: FastAPI) -> None:
    """Puts every page of the dashboard onto an application."""
    app.router.routes.append(Route("/", _to_dashboard, methods=["GET"]))
    app.include_router(assets.router)
    app.include_router(session.router)
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.append(Route(f"{ROOT}/{{rest:path}}", lost, methods=["GET"]))


async def _to_dashboard(request: Request) -> Response:
    """A fragment in the address, where `keptwork dev` has its token, goes along: browsers see to it."""
    return RedirectResponse(f"{ROOT}/", 303)
