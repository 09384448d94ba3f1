"""Send one POST request to a checked IP address: HTTP/1.1 over asyncio streams.

The connection goes to the address, not to the host name. The name goes into the Host header and into TLS, where the
certificate must match it. Redirects are not followed, because their targets have not been checked. Only the head of the
response is read.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from typing import Any, NamedTuple

from keptwork.store.contract.outbox import DELIVERED, GIVEN_UP, MOST_ATTEMPTS, PENDING, Delivery
from keptwork.webhooks.address import Endpoint

# Decide what happens to a webhook delivery after an attempt. The decision is pure.


FIRST_PAUSE_US = 5_000_000
LONGEST_PAUSE_US = 4 * 3_600_000_000
GROWTH = 3
MOST_REFUSALS = 3
TEMPORARY = frozenset({408, 425, 429})
LONGEST_TEXT = 300


class Answer(NamedTuple):
    """The result of an attempt: an HTTP status, or why there is none.

    If `refused` is set, the request was not sent, because its address is not allowed.
    """

    status: int | None = None
    error: str | None = None
    retry_after_us: int | None = None
    refused: bool = False


class Verdict(NamedTuple):
    """The new state, the delay until the next attempt, and the error."""

    state: str
    delay_us: int = 0
    error: str | None = None


def verdict(delivery: Delivery, answer: Answer, chance: Callable[[], float]) -> Verdict:
    """Decide the state of a delivery.

    Any 2xx delivers it. Temporary failures (no response, 429, 5xx) are retried for about a day. Other failures
    (redirects, other 4xx, an address that is not allowed) are retried a few times.
    """
    if answer.status is not None and 200 <= answer.status < 300:
        return Verdict(DELIVERED)
    error = (answer.error or f"the answer was {answer.status}")[:LONGEST_TEXT]
    made = delivery.attempts - (delivery.most_attempts - MOST_ATTEMPTS)
    if made >= (MOST_ATTEMPTS if _may_pass(answer) else MOST_REFUSALS):
        return Verdict(GIVEN_UP, error=error)
    return Verdict(PENDING, max(pause_us(made, chance), min(answer.retry_after_us or 0, LONGEST_PAUSE_US)), error)


def pause_us(made: int, chance: Callable[[], float]) -> int:
    """Return the pause before the next attempt: longer each time, with jitter of up to 20 %."""
    longest = min(FIRST_PAUSE_US * int(GROWTH ** (min(made, 20) - 1)), LONGEST_PAUSE_US)
    return round(longest * (1 - chance() / 5))


def _may_pass(answer: Answer) -> bool:
    if answer.status is None:
        return not answer.refused
    return answer.status in TEMPORARY or answer.status >= 500


CONNECT_SECONDS = 5.0
TOTAL_SECONDS = 15.0
LONGEST_LINE = 8 << 10
MOST_LINES = 100
MOST_INTERIM = 5
SECOND = 1_000_000

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: .*)?\r?\n")


async def post(endpoint: Endpoint, addresses: Sequence[str], headers: Mapping[str, str], body: bytes) -> Answer:
    """Send the request and return its outcome. Raises nothing except a cancellation."""
    try:
        async with asyncio.timeout(TOTAL_SECONDS):
            reader, writer = await _connected(endpoint, addresses)
            try:
                writer.write(_request(endpoint, headers, body))
                await writer.drain()
                return await _answer(reader)
            finally:
                writer.transport.abort()  # the rest of the response is not needed
    except TimeoutError:
        return Answer(error=f"no answer within {TOTAL_SECONDS:g} s")
    except ssl.SSLCertVerificationError as error:
        return Answer(error=f"the certificate is not valid: {error.verify_message}")
    except ssl.SSLError as error:
        return Answer(error=f"no TLS connection: {error.reason}")
    except (OSError, EOFError) as error:
        return Answer(error=f"no connection, or it broke: {_plain(error)}")
    except ValueError as error:
        return Answer(error=f"the answer was not understood: {error}")


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host name.

    The lookup runs on a daemon thread, so a resolver that hangs blocks nothing, not even the exit of the process.
    """
    found: Future[list[str]] = Future()
    found.set_running_or_notify_cancel()
    threading.Thread(target=_look_up, args=(found, host, port), name="keptwork-resolver", daemon=True).start()
    async with asyncio.timeout(CONNECT_SECONDS):
        return await asyncio.wrap_future(found)


def _look_up(found: Future[list[str]], host: str, port: int) -> None:
    try:
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        found.set_result([str(address[0]) for *_, address in answers])
    except (OSError, UnicodeError) as error:
        found.set_exception(error)


async def _connected(endpoint: Endpoint, addresses: Sequence[str]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that accepts the connection."""
    secure: dict[str, Any] = {"limit": LONGEST_LINE}
    if endpoint.scheme == "https":
        secure |= {"ssl": tls(), "server_hostname": endpoint.host}
    failure: Exception | None = None
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await asyncio.open_connection(address, endpoint.port, **secure)
        except ssl.SSLError:
            raise
        except TimeoutError:
            failure = OSError(f"no connection within {CONNECT_SECONDS:g} s")
        except OSError as error:
            failure = error
    raise failure or OSError("no address")


@cache
def tls() -> ssl.SSLContext:
    """Return the context that checks certificates against the system's trust store, or against SSL_CERT_FILE."""
    return ssl.create_default_context()


def _request(endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = {"Host": endpoint.authority, **headers, "Content-Length": str(len(body)), "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {endpoint.target} HTTP/1.1\r\n{head}\r\n".encode("ascii") + body


async def _answer(reader: asyncio.StreamReader) -> Answer:
    for _ in range(MOST_INTERIM):
        line = await reader.readline()
        if not line:
            raise EOFError("it was closed without an answer")
        match = _STATUS.fullmatch(line)
        if match is None:
            raise ValueError("it is no HTTP/1.1")
        headers = await _headers(reader)
        if (status := int(match[1])) >= 200:
            return Answer(status, retry_after_us=_retry_after(headers))
    raise ValueError("it says over and over that it is about to answer")


async def _headers(reader: asyncio.StreamReader) -> dict[str, str]:
    found: dict[str, str] = {}
    for _ in range(MOST_LINES):
        line = await reader.readline()
        if not line.strip():
            return found
        name, _, value = line.decode("latin-1").partition(":")
        found[name.strip().lower()] = value.strip()
    raise ValueError(f"it has more than {MOST_LINES} headers")


def _retry_after(headers: Mapping[str, str]) -> int | None:
    """Return the requested delay in microseconds, or None. A date counts from the Date header of the same response."""
    from email.utils import parsedate_to_datetime  # imported here because few responses need it

    text = headers.get("retry-after", "")
    if text.isascii() and text.isdecimal():
        return min(int(text[:9]), 10**9) * SECOND
    try:
        wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers.get("date", ""))
    except (ValueError, TypeError):
        return None
    return max(round(wait.total_seconds()), 0) * SECOND


def _plain(error: BaseException) -> str:
    return " ".join(str(getattr(error, "strerror", None) or error).split())
