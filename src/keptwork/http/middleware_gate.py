"""Admit requests: check the key, then the limits of its tenant. The content of a request plays no role yet.

A request without a valid key continues without a principal. Routes that need a key return 401, and the body is
discarded.

A key is in the Authorization header. A browser that has signed in sends the key as a cookie. For changes, the cookie
counts only if a page of this server sent the request, so forms and scripts of other sites have no effect.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

from keptwork.errors import KeptworkError
from keptwork.http.rate_limit import Visit

LONGEST_TOKEN = 500
BEARER = "bearer"
COOKIE = "keptwork_key"
HARMLESS = frozenset({"GET", "HEAD"})


async def admitted(scope: Scope) -> Visit | None:
    """Return the visit of the key's tenant, or None without a valid key. Raise an error if a limit is exceeded."""
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
    except KeptworkError:
        guest = await app.turnstile.guest(tenant_id)
        scope["state"]["limits"] = guest.headers()
        raise
    scope["state"]["visit"] = visit
    scope["state"]["limits"] = visit.headers
    return visit


def _token(scope: Scope) -> str | None:
    headers = Headers(scope=scope)
    if "authorization" not in headers:
        return _of_cookie(headers, scope["method"])
    scheme, _, token = headers["authorization"].partition(" ")
    return _good(token.strip()) if scheme.lower() == BEARER else None


def _of_cookie(headers: Headers, method: str) -> str | None:
    cookies = headers.get("cookie", "")
    if COOKIE not in cookies or not (method in HARMLESS or _from_own_page(headers)):
        return None
    return _good(cookie_parser(cookies).get(COOKIE, ""))


def _from_own_page(headers: Headers) -> bool:
    """Return whether a page of this server sent the request. Browsers add the origin to every change."""
    try:
        return urlsplit(headers.get("origin", "")).netloc == headers.get("host")
    except ValueError:
        return False


def _good(token: str) -> str | None:
    return token if token and token.isascii() and len(token) <= LONGEST_TOKEN else None
