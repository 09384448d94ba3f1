"""Signing in and out: a browser keeps the key as a cookie that no script can read, until it is closed.

Nothing of it is kept on the server: a key that is revoked opens nothing from then on, here as anywhere.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import RedirectResponse, Response

from keptwork.dashboard.page import ROOT, html, own_address
from keptwork.http.auth import Reads
from keptwork.http.gate import COOKIE

router = APIRouter(prefix=ROOT, include_in_schema=False)

Next = Annotated[str, Query(max_length=2_000)]


@router.get("/login")
async def login(request: Request, next: Next = "") -> Response:
    """The page that asks for a key. Who has signed in already goes on."""
    if "principal" in request.scope["state"]:
        return RedirectResponse(own_address(next), 303)
    return html("login.html", 200, next=own_address(next))


@router.post("/session")
async def sign_in(request: Request, caller: Reads) -> Response:
    """Takes the key of the Authorization header into a cookie, if it is good and may read."""
    answer = Response(status_code=204)
    answer.set_cookie(COOKIE, request.scope["state"]["token"], **_how(request))
    return answer


@router.delete("/session")
async def sign_out(request: Request) -> Response:
    """Forgets the key; it stays good."""
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, **_how(request))
    return answer


def _how(request: Request) -> dict[str, Any]:
    """A proxy in front says whether the browser speaks TLS; should it lie, the cookie is its own."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": scheme == "https"}
