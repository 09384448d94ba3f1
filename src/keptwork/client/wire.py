"""Send requests to a server, and retry them where that is safe.

Connections belong to the event loop that opened them. Requests from another loop, or after that loop was closed, are
handed to a thread.

Requests and responses are JSON, except for stored content. Each change has an idempotency key, so that the client can
resend it after a lost response and the server runs it once. An unsuccessful response is raised as the error of its
problem document.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar
from urllib.parse import quote
from uuid import uuid4

from keptwork.client.credentials import server_address, server_key
from keptwork.client.problems import MEDIA_TYPE, error_of
from keptwork.client.retry import Patience, asked_seconds, passes
from keptwork.client.stream import followed
from keptwork.core.home_loop import Home, keep_for_ever, watch_forks
from keptwork.core.loop_scope import running_loop
from keptwork.core.secrets import Key
from keptwork.errors import BadInput, KeptworkError, MissingExtra, NoAnswer, StrangeAnswer

if TYPE_CHECKING:
    from keptwork.client.sync_wire import SyncWire

try:
    import httpx2
except ModuleNotFoundError:
    raise MissingExtra(what="keptwork.client", extra="client") from None

T = TypeVar("T")

Query = Mapping[str, str | int | float | bool | Sequence[str] | None]
"""Query parameters. None omits a parameter; several values repeat its name."""

MOST_BYTES = 64 << 20
JSON, EVENT_STREAM = "application/json", "text/event-stream"
IDEMPOTENCY_KEY = "Idempotency-Key"


class Asked(NamedTuple):
    """A request that can be sent any number of times."""

    method: str
    path: str
    query: dict[str, Any]
    headers: dict[str, str]
    body: bytes | None
    read_seconds: float | None
    repeatable: bool

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Answer(NamedTuple):
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def document(self) -> Any:
        """Return the JSON of the response, or None if it is not JSON."""
        try:
            return json.loads(self.body) if self.media_type in (JSON, MEDIA_TYPE) else None
        except (ValueError, RecursionError):
            return None

    def problem(self) -> Mapping[str, Any] | None:
        """Return the problem document of the response, or None."""
        found = self.document() if self.media_type == MEDIA_TYPE else None
        return found if isinstance(found, dict) else None


class Wire:
    """A connection pool to one server with one key. Close it, or use it with `async with`.

    The server's URL comes from the argument or KEPTWORK_SERVER. The key comes from an argument, a file, or
    KEPTWORK_KEY.
    """

    def __init__(
        self,
        server: str | None = None,
        key: str | Key | None = None,
        *,
        key_file: str | Path | None = None,
        patience: Patience | None = None,
        most_bytes: int = MOST_BYTES,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self.server = server_address(server)
        self.patience = patience or Patience()
        self._key = server_key(key, key_file)
        self._most_bytes = most_bytes
        self.dice = dice
        self._opened: httpx2.AsyncClient | None = None
        self._home = Home(self._close_here, self._abandon)
        self._visits: SyncWire | None = None
        self._gate = threading.Lock()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.server!r}, key hidden)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._home.loop in (None, running_loop()):
            await self.close()

    async def close(self) -> None:
        """Close all connections. A later request opens new ones."""
        await self._home.close()
        visits, self._visits = self._visits, None
        if visits is not None:
            await asyncio.to_thread(visits.close)

    async def _close_here(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.aclose()

    def _abandon(self) -> bool:
        """Leave connections that no event loop can close to the garbage collector."""
        opened, self._opened = self._opened, None
        return opened is not None

    def forked(self) -> None:
        """Leave all connections to the parent; called in a forked child."""
        keep_for_ever(self._opened, self._home)
        self._opened, self._home = None, Home(self._close_here, self._abandon)

    def _elsewhere(self) -> SyncWire | None:
        """Return the wire of a thread, for calls from an event loop that does not own the connections."""
        if self._home.claim():
            return None
        from keptwork.client.sync_wire import SyncWire

        with self._gate:
            self._visits = self._visits or SyncWire(self._another)
            return self._visits

    def _another(self) -> Wire:
        how: dict[str, Any] = {"patience": self.patience, "most_bytes": self._most_bytes, "dice": self.dice}
        return Wire(self.server, self._key, **how)

    # --- requests

    async def get(
        self, answer: type[T], path: str, query: Query | None = None, *, read_seconds: float | None = None
    ) -> T:
        """Get the document at a path. `answer` is its type, which is not checked."""
        asked = Asked("GET", path, _given(query), {"Accept": JSON}, None, read_seconds, True)
        return self._document(asked, await self._answered(asked), answer)

    async def content(self, path: str, query: Query | None = None) -> bytes:
        """Get the content at a path, byte for byte."""
        asked = Asked("GET", path, _given(query), {"Accept": "*/*"}, None, None, True)
        return (await self._answered(asked)).body

    async def tell(
        self, answer: type[T], method: str, path: str, body: Mapping[str, Any], *, read_seconds: float | None = None
    ) -> T:
        """Send a change that is safe to repeat, and return its response.

        It has no idempotency key, which would leave a row in the server's database.
        """
        headers = {"Accept": JSON, "Content-Type": JSON}
        asked = Asked(method, path, {}, headers, _written(body), read_seconds, True)
        return self._document(asked, await self._answered(asked), answer)

    async def change(
        self,
        answer: type[T],
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Query | None = None,
        *,
        idempotency_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        read_seconds: float | None = None,
        repeatable: bool = True,
    ) -> T:
        """Send a change, and return its response.

        It has an idempotency key, so that it runs once however often it is sent. Default: a new key. Pass
        `repeatable=False` for a change that would run again despite its key.
        """
        sent = {"Accept": JSON, "Content-Type": JSON, IDEMPOTENCY_KEY: idempotency_key or str(uuid4())}
        asked = Asked(
            method, path, _given(query), {**sent, **(headers or {})}, _written(body or {}), read_seconds, repeatable
        )
        return self._document(asked, await self._answered(asked), answer)

    async def pages(self, item: type[T], field: str, path: str, query: Query | None = None) -> AsyncGenerator[T, None]:
        """Yield the items of a list, page by page."""
        asked = dict(query or {})
        while True:
            page = await self.get(dict[str, Any], path, asked)
            for one in page[field]:
                yield one
            if page["next"] is None:
                return
            asked["after"] = page["next"]

    def follow(
        self, item: type[T], path: str, query: Query | None = None, *, after: str | None = None
    ) -> AsyncGenerator[T, None]:
        """Yield each document of a stream once, after a cursor or from now on, over any number of connections."""
        return self._followed(path, query, after)

    async def _followed(self, path: str, query: Query | None, after: str | None) -> AsyncGenerator[Any, None]:
        elsewhere = self._elsewhere()
        source = followed(self, path, query, after) if elsewhere is None else elsewhere.visited(path, query, after)
        async with aclosing(source):
            async for one in source:
                yield one

    @asynccontextmanager
    async def listening(
        self, path: str, query: Query | None = None, headers: Mapping[str, str] | None = None, *, silence: float
    ) -> AsyncIterator[httpx2.Response]:
        """Open a stream for the duration of the block. It ends after `silence` seconds without data.

        The request is not retried, because the caller knows where to continue.
        """
        asked = Asked("GET", path, _given(query), {"Accept": EVENT_STREAM, **(headers or {})}, None, silence, True)
        try:
            async with self._sent(asked) as response:
                if response.status_code != 200:
                    self._raise(asked, await self._whole(asked, response))
                if not response.headers.get("content-type", "").startswith(EVENT_STREAM):
                    raise self._strange(asked, "what is no stream of events")
                yield response
        except httpx2.TransportError as error:
            raise self._no_answer(asked, error) from error

    # --- sending

    async def _answered(self, asked: Asked) -> Answer:
        elsewhere = self._elsewhere()
        if elsewhere is not None:
            return await elsewhere.hand(lambda wire: wire._answered(asked))
        in_doubt: NoAnswer | None = None
        for tried in count(1):
            outcome = await self._try(asked)
            if isinstance(outcome, NoAnswer):
                outcome = in_doubt = outcome if in_doubt is None or outcome.facts["unsure"] else in_doubt
            pause = self._pause(asked, outcome, tried)
            if pause is None:
                return self._settled(asked, outcome)
            await asyncio.sleep(pause)
        raise AssertionError("counting has no end")

    async def _try(self, asked: Asked) -> Answer | NoAnswer:
        try:
            async with self._sent(asked) as response:
                return await self._whole(asked, response)
        except httpx2.TransportError as error:
            return self._no_answer(asked, error)

    @asynccontextmanager
    async def _sent(self, asked: Asked) -> AsyncIterator[httpx2.Response]:
        wait = self.patience.read_seconds if asked.read_seconds is None else asked.read_seconds
        async with (await self._http()).stream(
            asked.method,
            self.server + asked.path,
            params=asked.query,
            content=asked.body,
            headers=asked.headers,
            timeout=httpx2.Timeout(wait, connect=self.patience.connect_seconds, pool=None),
        ) as response:
            yield response

    async def _whole(self, asked: Asked, response: httpx2.Response) -> Answer:
        """Read the response, and reject a body above the size limit."""
        parts, size = [], 0
        async for part in response.aiter_raw():
            parts.append(part)
            size += len(part)
            if size > self._most_bytes:
                raise self._strange(asked, f"{response.status_code} and more than {self._most_bytes:,} bytes")
        return Answer(response.status_code, response.headers, b"".join(parts))

    def _pause(self, asked: Asked, outcome: Answer | NoAnswer, tried: int) -> float | None:
        """Return the delay until the next attempt, or None for no further attempt."""
        if not asked.repeatable:
            return None
        if isinstance(outcome, NoAnswer):
            return self.patience.pause(tried, self.dice)
        if not passes(outcome.status, (outcome.problem() or {}).get("type")):
            return None
        return self.patience.pause(tried, self.dice, asked_seconds(outcome.headers))

    async def _http(self) -> httpx2.AsyncClient:
        """Return the HTTP client, and create it at the first call.

        It follows no redirects, which would send the key elsewhere. It accepts no compression, because a compressed
        body can expand to any size.
        """
        if self._opened is None:
            # Reading certificates is the slowest part, and without TLS nothing needs them.
            secure = self.server.startswith("https:")
            self._opened = httpx2.AsyncClient(
                verify=httpx2.create_ssl_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                follow_redirects=False,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=5.0),
                headers={
                    "Authorization": f"Bearer {self._key.value}",
                    "Accept-Encoding": "identity",
                    "User-Agent": "keptwork-client",
                },
            )
            watch_forks(self)
            await self._home.settle()
        return self._opened

    # --- responses

    def _settled(self, asked: Asked, outcome: Answer | NoAnswer) -> Answer:
        if isinstance(outcome, NoAnswer):
            raise outcome
        if not 200 <= outcome.status < 300:
            self._raise(asked, outcome)
        return outcome

    def _raise(self, asked: Asked, answer: Answer) -> None:
        problem = answer.problem()
        if problem is None or answer.status < 400:
            raise self._strange(asked, _found(answer))
        raise error_of(problem, answer.status, answer.headers.get("x-request-id"))

    def _document(self, asked: Asked, answer: Answer, kind: type[T]) -> T:
        document: T | None = answer.document()
        if document is None:
            raise self._strange(asked, _found(answer))
        return document

    def _no_answer(self, asked: Asked, error: httpx2.TransportError) -> NoAnswer:
        unsure = ""
        if asked.method != "GET" and not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            key = asked.headers.get(IDEMPOTENCY_KEY)
            unsure = f"; it may have been done all the same: ask again under the idempotency key {key!r}"
        detail = str(error) or type(error).__name__
        return NoAnswer(server=self.server, asked=str(asked), detail=self._key.hidden_in(detail), unsure=unsure)

    def _strange(self, asked: Asked, found: str) -> KeptworkError:
        return StrangeAnswer(server=self.server, asked=str(asked), found=found)


def segment(value: str) -> str:
    """Return a value as one segment of a path. Reject values that would change the path.

    >>> segment("job_17"), segment("a/b")
    ('job_17', 'a%2Fb')
    """
    if value in ("", ".", ".."):
        raise BadInput(what=f"{value!r} is no id or name")
    return quote(value, safe="")


def _given(query: Query | None) -> dict[str, Any]:
    return {name: value for name, value in (query or {}).items() if value is not None}


def _written(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(what=f"this cannot be sent as JSON: {error}") from None


def _found(answer: Answer) -> str:
    return f"{answer.status} and {answer.media_type or 'no content type'}"
