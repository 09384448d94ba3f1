"""Middleware around every request and response.

It reads each body completely, within limits of size, depth, and time, so that no route handles a slow or hostile body.
It gives each request an ID, and adds security headers to each response.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keptwork import errors
from keptwork.http import middleware_gate, middleware_witness, problems
from keptwork.http.rate_limit_requests import Limits

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
        with middleware_witness.Witness(scope, out):
            await self._answer(scope, receive, out)

    async def _answer(self, scope: Scope, receive: Receive, out: _Outgoing) -> None:
        try:
            visit = await middleware_gate.admitted(scope)
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
