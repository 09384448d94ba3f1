"""Sign in and out: a browser stores the key as a session cookie that no script can read.

The server stores no session, so a revoked key stops working here too.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from keptwork.dashboard.page import ROOT, html, own_address
from keptwork.http.auth import Reads
from keptwork.http.middleware_gate import COOKIE

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
