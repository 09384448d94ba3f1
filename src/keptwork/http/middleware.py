"""Middleware around every request and response.

It reads each body completely, within limits of size, depth, and time, so that no route handles a slow or hostile body.
It gives each request an ID, and adds security headers to each response.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keptwork import errors
from keptwork.errors import KeptworkError
from keptwork.http import problems
from keptwork.http.rate_limit import Limits, Visit
from keptwork.observability import logs, spans

# Admit requests: check the key, then the limits of its tenant. The content of a request plays no role yet.
#
# A request without a valid key continues without a principal. Routes that need a key return 401, and the body is
# discarded.
#
# A key is in the Authorization header. A browser that has signed in sends the key as a cookie. For changes, the cookie
# counts only if a page of this server sent the request, so forms and scripts of other sites have no effect.


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


# Record a request from start to end: a span, and a line in the access log.
#
# They contain the method, the declared route, the status, the duration, the tenant, and the IDs of the request and the
# trace. They contain neither the query nor headers, which can have keys, nor the body.


UNSEEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths without spans, because machines request them every few seconds."""

SERVER_ERROR = 500


class Answered(Protocol):
    """The state of a response."""

    @property
    def status(self) -> int | None: ...


class Witness:
    """A context for one request: everything created and logged in it belongs to its trace.

    Each request runs in its own task, so nothing remains for the next request.
    """

    def __init__(self, scope: Scope, answer: Answered) -> None:
        self._scope = scope
        self._answer = answer
        self._began = time.perf_counter()
        self._span: Any = None

    def __enter__(self) -> None:
        headers, state = Headers(scope=self._scope), self._scope["state"]
        kept = spans.received(headers.get("traceparent"))
        state["trace_id"] = spans.trace_id(kept)
        spans.ambient.set(kept)
        logs.request.set(state)
        if spans.tracer is not None and self._scope["path"] not in UNSEEN:
            self._open = spans.request(self._scope["method"], headers)
            self._span = self._open.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if logs.requests.isEnabledFor(logging.INFO):
            self._tell()
        if self._span is not None:
            self._end_span()
            self._open.__exit__(kind, error, trace)

    def _tell(self) -> None:
        milliseconds = round((time.perf_counter() - self._began) * 1000, 3)
        method, route, status = self._scope["method"], self._route, self._answer.status
        told = {"method": method, "route": route, "status": status, "ms": milliseconds}
        logs.requests.info("%s %s %s", method, route or "–", status or "left", extra={"keptwork": told})

    def _end_span(self) -> None:
        route, status = self._route, self._answer.status
        if route is not None:
            self._span.update_name(f"{self._scope['method']} {route}"[: spans.LONGEST_NAME])
            spans.noted(self._span, url__path=self._scope["path"])
        tenant = self._scope["state"].get("tenant")
        spans.noted(self._span, http__route=route, http__response__status_code=status, keptwork__tenant__id=tenant)
        if status is not None and status >= SERVER_ERROR:
            spans.failed(self._span, str(status))

    @property
    def _route(self) -> str | None:
        """The declared route, or None for an unknown path, which can contain anything."""
        return getattr(self._scope.get("route"), "path", None)


REQUEST_ID = "X-Request-ID"
SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
BODILESS = frozenset({"GET", "HEAD", "OPTIONS"})
DRAINED_BODIES = 16
"""The part of an oversized body, in multiples of the limit, that is read so the sender gets the response."""

# Encoded once, because every response has them.
_SECURITY = [(name.lower().encode(), value.encode()) for name, value in SECURITY.items()]
_REQUEST_ID = REQUEST_ID.lower().encode()
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_JSON = re.compile(r'application/json(\s*;\s*charset="?utf-?8"?)?', re.IGNORECASE)
_BRACKETS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)


class ClientLeft(Exception):
    """The client has disconnected."""


class Door:
    """The middleware around the whole application."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        out = _Outgoing(send, request_id, scope["state"])
        with Witness(scope, out):
            await self._answer(scope, receive, out)

    async def _answer(self, scope: Scope, receive: Receive, out: _Outgoing) -> None:
        try:
            visit = await admitted(scope)
        except errors.KeptworkError as refused:
            await self._refuse(refused, scope, receive, out)
            return
        try:
            await self._inside(scope, receive, out, known=visit is not None)
        finally:
            if visit is not None:
                visit.leave()

    async def _refuse(self, refused: errors.KeptworkError, scope: Scope, receive: Receive, out: _Outgoing) -> None:
        """Send a rejection. The body is read and discarded, so that the client can reuse the connection."""
        with suppress(errors.KeptworkError, ClientLeft):
            if scope["method"] not in BODILESS:
                await self._body(Headers(scope=scope), receive, keep=False)
        await problems.response(refused)(scope, receive, out)

    async def _inside(self, scope: Scope, receive: Receive, out: _Outgoing, known: bool) -> None:
        try:
            passed = await self._passed(scope, receive, known)
        except errors.KeptworkError as refused:
            await problems.response(refused, {"Connection": "close"})(scope, receive, out)
            return
        except ClientLeft:
            return
        await self._through(scope, passed, out)

    async def _through(self, scope: Scope, receive: Receive, out: _Outgoing) -> None:
        """Call the application, and report an unexpected error. The server aborts a partial response."""
        try:
            await self._app(scope, receive, out)
        except Exception as error:
            if out.begun:
                raise
            await problems.unexpected(scope, error)(scope, receive, out)

    async def _passed(self, scope: Scope, receive: Receive, known: bool) -> Receive:
        """Return the source of a checked body. The body of an unauthenticated request is read and discarded."""
        if scope["method"] in BODILESS:
            return receive
        headers = Headers(scope=scope)
        body = await self._body(headers, receive, keep=known)
        if body:
            found = headers.get("content-type", "none")
            if not _JSON.fullmatch(found.strip()):
                raise errors.WrongContentType(found=repr(found[:100]))
            if deeper(body, self._limits.json_depth):
                raise errors.TooDeep(limit=self._limits.json_depth)
        return _replayed(body, receive)

    async def _body(self, headers: Headers, receive: Receive, keep: bool) -> bytes:
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await self._read(headers, receive, keep)
        except TimeoutError:
            raise errors.TooSlow(seconds=self._limits.body_seconds) from None

    async def _read(self, headers: Headers, receive: Receive, keep: bool) -> bytes:
        limit, size, parts = self._limits.body_bytes, 0, []
        more = headers.get("content-length") != "0"
        while more and size <= limit * DRAINED_BODIES:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            if keep and size <= limit:
                parts.append(part)
        if size > limit:
            raise errors.BodyTooLarge(limit=limit)
        return b"".join(parts)


class _Outgoing:
    """The response channel, which adds headers."""

    def __init__(self, send: Send, request_id: str, state: dict[str, Any]) -> None:
        self._send = send
        self._state = state
        self.request_id = request_id
        self.begun = False
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            headers = message["headers"] = [*message.get("headers", ()), (_REQUEST_ID, self.request_id.encode())]
            headers += self._state.get("limits", ())
            present = {name for name, _ in headers}
            headers += [pair for pair in _SECURITY if pair[0] not in present]
        await self._send(message)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a channel that delivers the body once, and then only the client's disconnect."""
    first = True

    async def replay() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return replay


def _request_id(scope: Scope) -> str:
    given = Headers(scope=scope).get(REQUEST_ID, "")
    return given if _ID.fullmatch(given) else secrets.token_hex(16)


def deeper(body: bytes, limit: int) -> bool:
    """Return whether JSON is nested deeper than a limit. A body with few brackets is not scanned.

    >>> deeper(b'[[["]]]"]]]', 3), deeper(b"[[[[1]]]]", 3), deeper(b'{"a": "[[[["}', 3)
    (False, True, False)
    """
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for found in _BRACKETS.finditer(body):
        sign = found[0]
        depth += sign in (b"[", b"{")
        depth -= sign in (b"]", b"}")
        if depth > limit:
            return True
    return False
