"""The HTTP client under an SDK: how long it waits, how much it takes, and that it goes nowhere else.

This module needs what the SDKs bring along, so it is imported only once a call is made.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from functools import lru_cache

import httpx2

from keptwork.provider.limits import Limits


class TooLarge(Exception):
    """A reply is larger than what is taken."""


class Packed(Exception):
    """A reply is packed, though that was not asked for: how large it is would be known when it is too late."""


def http_client(limits: Limits) -> httpx2.AsyncClient:
    """A client for one call. None is kept: a connection that was idle may be dead, which would cost an attempt, since
    nothing here tries again. Redirects are not followed, as they would carry the key elsewhere."""

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
    """Read once: that takes longer than all else about a client."""
    return httpx2.create_ssl_context()


class _Bounded(httpx2.AsyncByteStream):
    """Lets no more than so many bytes of a reply through, be it an answer or an error."""

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
