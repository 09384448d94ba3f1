"""Add the dashboard to a server: pages under /ui, static files, and a redirect from the root."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Query, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from keptwork.dashboard import page
from keptwork.dashboard.page import ROOT, html, lost, own_address
from keptwork.dashboard.pages import ROUTERS
from keptwork.http.auth import Reads
from keptwork.http.middleware import COOKIE

# Sign in and out: a browser stores the key as a session cookie that no script can read.
#
# The server stores no session, so a revoked key stops working here too.


session_router = APIRouter(prefix=ROOT, include_in_schema=False)

Next = Annotated[str, Query(max_length=2_000)]


@session_router.get("/login")
async def login(request: Request, next: Next = "") -> Response:
    """Show the sign-in page. A signed-in user is redirected."""
    if "principal" in request.scope["state"]:
        return RedirectResponse(own_address(next), 303)
    return html("login.html", 200, next=own_address(next))


@session_router.post("/session")
async def sign_in(request: Request, caller: Reads) -> Response:
    """Store the key of the Authorization header in a cookie, if it is valid and has the read scope."""
    answer = Response(status_code=204)
    answer.set_cookie(COOKIE, request.scope["state"]["token"], **_how(request))
    return answer


@session_router.delete("/session")
async def sign_out(request: Request) -> Response:
    """Delete the cookie. The key stays valid."""
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, **_how(request))
    return answer


def _how(request: Request) -> dict[str, Any]:
    """Return the cookie attributes.

    A proxy reports whether the browser uses TLS. A false report affects only the cookie of that client.
    """
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": scheme == "https"}


def install(app: FastAPI) -> None:
    """Add every page of the dashboard to an application."""
    app.router.routes.append(Route("/", _to_dashboard, methods=["GET"]))
    app.include_router(page.router)
    app.include_router(session_router)
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.append(Route(f"{ROOT}/{{rest:path}}", lost, methods=["GET"]))


async def _to_dashboard(request: Request) -> Response:
    """Redirect to the dashboard. Browsers keep the fragment of the URL, where `keptwork dev` has its token."""
    return RedirectResponse(f"{ROOT}/", 303)
