"""The HTTP client under an SDK: its timeouts, its size limit, and no redirects.

This module needs packages that come with the SDKs, so it is imported only when a call is made.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from functools import lru_cache

import httpx2

from keptwork.agents.conversation_limits import Limits


class TooLarge(Exception):
    """A reply is larger than the limit."""


class Packed(Exception):
    """A reply is compressed although that was not requested. Its real size would be known too late."""


def http_client(limits: Limits) -> httpx2.AsyncClient:
    """Return a client for one call. Clients are not reused: an idle connection might be dead, which would cost an
    attempt, since this code does not retry. Redirects are not followed, because they would send the key elsewhere."""

    async def bound(response: httpx2.Response) -> None:
        if not isinstance(response.stream, httpx2.AsyncByteStream):
            raise TypeError("an async client has async streams")
        response.stream = _Bounded(response.stream, limits.most_bytes, response.headers.get("content-encoding"))

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(limits.total, connect=limits.connect),
        follow_redirects=False,
        verify=_certificates(),
        headers={"Accept-Encoding": "identity"},
        event_hooks={"response": [bound]},
    )


@lru_cache(maxsize=1)
def _certificates() -> ssl.SSLContext:
    """Return the certificates. They are cached, because loading them takes longer than anything else about a client."""
    return httpx2.create_ssl_context()


class _Bounded(httpx2.AsyncByteStream):
    """A stream that raises if a reply, an answer or an error, exceeds a number of bytes."""

    def __init__(self, stream: httpx2.AsyncByteStream, most_bytes: int, encoding: str | None) -> None:
        self._stream = stream
        self._most_bytes = most_bytes
        self._packed = (encoding or "identity").lower() != "identity"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._packed:
            raise Packed
        taken = 0
        async for part in self._stream:
            taken += len(part)
            if taken > self._most_bytes:
                raise TooLarge
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
