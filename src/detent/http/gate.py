"""The gate: who comes, and whether they may come in just now. What a request is about is no matter yet.

A request without a good key is let through as nobody's: the routes that need one say 401, and nobody's body is kept.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from detent.errors import DetentError
from detent.http.turnstile import Visit

LONGEST_TOKEN = 500
BEARER = "bearer"


async def admitted(scope: Scope) -> Visit | None:
    """The visit of whoever the request's key stands for, or nobody's; too much of anything is refused."""
    state, app = scope["state"], scope["app"].state
    token = _token(scope)
    if token is None:
        return None
    address = scope["client"][0] if scope.get("client") else ""
    app.guesses.insist_few(address, token)
    try:
        found = await app.authenticate(token)
    except Exception as error:
        state["refusal"] = error
        return None
    if found is None:
        app.guesses.wrong(address)
        return None
    app.guesses.right(token)
    state["token"], state["principal"], state["tenant"] = token, found, found.tenant_id
    return await _entered(scope, found.tenant_id)


async def _entered(scope: Scope, tenant_id: int) -> Visit:
    app = scope["app"].state
    try:
        visit: Visit = await app.turnstile.enter(tenant_id)
    except DetentError:
        guest = await app.turnstile.guest(tenant_id)
        scope["state"]["limits"] = guest.headers()
        raise
    scope["state"]["visit"] = visit
    scope["state"]["limits"] = visit.headers
    return visit


def _token(scope: Scope) -> str | None:
    scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != BEARER or not token or not token.isascii() or len(token) > LONGEST_TOKEN:
        return None
    return token
