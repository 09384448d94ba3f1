"""Translates errors of a call: whether and when to retry it, and whether it might have been paid for.

Both SDKs use the same names for their errors, so one table serves them. No message shows a key, even if a server
sends it. Like `failures.py`, this module is imported only when a call is made.
"""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

import httpx2

from keptwork.agents.conversation import BusinessFailure, Limits, SystemFailure
from keptwork.agents.providers.streamed_answer import Draft, Malformed
from keptwork.core.secrets import VARIABLES, Key
from keptwork.outcomes import PermanentError

# The HTTP client under an SDK: its timeouts, its size limit, and no redirects.
#
# This module needs packages that come with the SDKs, so it is imported only when a call is made.


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


LONGEST_WORDS = 300
LONGEST_WAIT_S = 86_400.0

_LATER = frozenset({408, 409, 425, 429, 499})
_UNPAID = frozenset({409, 425, 429, 500, 503, 529})
"""Statuses by which a provider states that it did not run the call. A gateway that timed out cannot know that."""
_NOT_CONNECTED = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)
_NO_SENSE = (Malformed, ValueError, TypeError, AttributeError, LookupError, RecursionError)


def fault_of(error: Exception, draft: Draft, key: Key, limits: Limits) -> Exception:
    """Return the failure that an error stands for."""
    who, causes = draft.provider, list(_causes(error))
    if any(isinstance(one, TooLarge) for one in causes):
        return BusinessFailure(f"the answer is larger than {limits.most_bytes:,} bytes", **draft.told)
    if any(isinstance(one, Packed) for one in causes):
        return PermanentError(f"{who} packs its answers though it was told not to; what is between should be changed")
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and status != httpx2.codes.OK:
        return _refused(status, error, draft, key)
    if any(isinstance(one, _NOT_CONNECTED) for one in causes):
        return SystemFailure(f"{who} cannot be reached: {_reason(causes[-1], key)}", sent=False)
    if any(isinstance(one, httpx2.TimeoutException | TimeoutError) for one in causes):
        return SystemFailure(f"{who} did not answer within {limits.total:g} s", **draft.told)
    if any(isinstance(one, httpx2.TransportError) for one in causes):
        return SystemFailure(f"{who} broke off: {_reason(causes[-1], key)}", **draft.told)
    if isinstance(error, _NO_SENSE):
        return BusinessFailure(f"{who} answered something that cannot be understood{_where(error)}", **draft.told)
    return SystemFailure(f"{who} failed: {_reason(error, key)}", **draft.told)


def retry_after_us(headers: Mapping[str, str], now: float) -> int | None:
    """Return how long a provider asks callers to wait: in milliseconds, in seconds, or until a date. `now` is used for
    a date if the response has no date of its own."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        seconds = _number(headers.get(name))
        if seconds is not None:
            return _bounded_us(seconds * unit)
    until, since = _date(headers.get("retry-after")), _date(headers.get("date"))
    return None if until is None else _bounded_us(until - (now if since is None else since))


def _refused(status: int, error: Exception, draft: Draft, key: Key) -> Exception:
    who = draft.provider
    if status in _LATER or status >= 500:
        what = {429: "has too many requests", 529: "is overloaded"}.get(status, "failed")
        wait = retry_after_us(getattr(getattr(error, "response", None), "headers", {}), time.time())
        words = f"{who} {what} ({status}): {_reason(error, key)}"
        return SystemFailure(words, retry_after_us=wait, sent=status not in _UNPAID, **draft.told)
    if status == 401:
        return PermanentError(
            f"{who} does not accept the key (401); check {VARIABLES[who]} or key_file in keptwork.toml"
        )
    if status == 403:
        return PermanentError(
            f"{who} does not let this key use {draft.model} (403); allow it there, or use another key"
        )
    if 300 <= status < 400:
        return PermanentError(f"{who} is elsewhere ({status}), where no key is sent; correct base_url in keptwork.toml")
    if status == 404:
        advice = f"check the model {draft.model} and base_url in keptwork.toml"
        return PermanentError(f"{who} knows no such thing (404): {_reason(error, key)}; {advice}")
    return PermanentError(f"{who} does not accept the request ({status}): {_reason(error, key)}; it has to be changed")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, and so on."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__


def _reason(error: BaseException, key: Key) -> str:
    """Return the reason as one short line without secrets. A server's own message is in the body."""
    said = _message(getattr(error, "body", None)) or str(error) or type(error).__name__
    line = re.sub(r"[^ -~\u00a1-\uffef]+", " ", key.hidden_in(said)).strip()
    return line if len(line) <= LONGEST_WORDS else f"{line[: LONGEST_WORDS - 3]}..."


def _message(body: Any) -> str | None:
    """Return the message in the body of an error. The SDKs unwrap the body differently."""
    for inner in (body.get("error"), body) if isinstance(body, Mapping) else ():
        if isinstance(inner, Mapping) and isinstance(inner.get("message"), str) and inner["message"]:
            return str(inner["message"])
    return None


def _where(error: Exception) -> str:
    return f": {error}" if isinstance(error, Malformed) else ""


def _number(text: str | None) -> float | None:
    """Return a finite number that is not negative, or None. A number with more digits than a wait can have counts as
    None."""
    return float(text) if text is not None and re.fullmatch(r"\s*\d{1,12}(\.\d{1,12})?\s*", text) else None


def _date(text: str | None) -> float | None:
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _bounded_us(seconds: float) -> int:
    return round(min(max(seconds, 0.0), LONGEST_WAIT_S) * 1_000_000)
