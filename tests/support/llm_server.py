"""A server on this machine that speaks as providers of models do, answers as told, and keeps its own books.

It knows the Messages API (`POST …/messages`) and Chat Completions (`POST …/chat/completions`), streamed and not; which
of them a request means is in its path, so `server.url` is the base_url of either SDK.

    with LlmServer([Status(429, retry_after="3"), Say("hello"), use("ruff", {"path": "src"})]) as server:
        ...                      # base_url = server.url, any key
    server.settings("openai")    # the text of a keptwork.toml for a worker that is to use it
    server.calls                 # every request that came, in order: Call(number, api, path, headers, body)
    server.bills                 # what was billed for, in order: Bill(call, model, usage, told)
    server.billed                # the sum of their usage
    server.billed_by_model       # the same by model

The script is a list of acts, one for each request in the order they come (after the last one, `Say()`), or a function
from a `Call` to an act, called in the thread of that request: it may look at what was asked (`call.model`, `call.said`,
`call.results`, `call.tools`) and may block as long as it likes. The acts:

    Say(text, usage=…, stop=…)   an answer; stop: end, tools, length, refused
    use(name, arguments)         an answer that asks for a tool; a str is sent as it is, JSON or not
    Say("")                      an answer with nothing in it
    Status(429, retry_after="3") an error; also 529, 500, 401 …
    Hang()                       no answer at all; Hang(begun=True): the beginning of one, then nothing
    Lose()                       the connection is closed without a word
    Cut(text, after=n)           the answer breaks off after n pieces; clean=True: as if that were all
    BadJson()                    something in the answer is no JSON
    Large(size)                  an answer of that many bytes; lines=False: all of it one line
    Drip(text, every=s)          an answer that comes byte by byte
    Raw(status, headers, body)   just that

Tokens are counted here, by the rule of one for four characters unless an act says otherwise, and billed when an answer
begins; what is no answer costs nothing. A bill is `told` if what was sent says what it is; then `usage` is what was
told. Messages says it at the start of a stream (with one token of output) and at its end, Chat Completions only at its
end, so an answer of the latter that broke off is billed untold: for all it was to be.
`LlmServer(script, answered=f)` calls `f(call)` when the last byte of an answer is out: the moment to kill somebody.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

from keptwork.agents.conversation import Usage
from tests.support.llm_acts import (
    CHAT,
    MESSAGES,
    Act,
    BadJson,
    Call,
    Cut,
    Drip,
    Hang,
    Large,
    Lose,
    Raw,
    Say,
    Status,
    use,
)
from tests.support.llm_wire import Frame, plain, streamed, usage_of

__all__ = [
    "Act",
    "BadJson",
    "Bill",
    "Call",
    "Cut",
    "Drip",
    "Hang",
    "Large",
    "LlmServer",
    "Lose",
    "Raw",
    "Say",
    "Script",
    "Status",
    "use",
]


class Bill(NamedTuple):
    """What a call costs. `told` if the one who called can know."""

    call: int
    model: str
    usage: Usage
    told: bool


Script = Sequence[Act] | Callable[[Call], Act]


class LlmServer:
    """One that is up inside its `with` block, on threads of its own."""

    def __init__(self, script: Script = (), *, answered: Callable[[Call], None] | None = None, port: int = 0) -> None:
        self.calls: list[Call] = []
        self.closed = threading.Event()
        self._bills: dict[int, Bill] = {}
        self._script = script
        self._answered = answered
        self._changed = threading.Condition()
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        """The base_url for either SDK."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def settings(self, provider: str = "anthropic", more: str = "") -> str:
        """A keptwork.toml by which everything is asked of this server, with more lines of `[models]`; no key needed."""
        return f'[models]\nprovider = "{provider}"\nbase_url = "{self.url}"\n{more}\n'

    @property
    def bills(self) -> list[Bill]:
        with self._changed:
            return sorted(self._bills.values())

    @property
    def billed(self) -> Usage:
        return _sum([bill.usage for bill in self.bills])

    @property
    def billed_by_model(self) -> dict[str, Usage]:
        bills = self.bills
        return {model: _sum([one.usage for one in bills if one.model == model]) for model in {b.model for b in bills}}

    def wait_for_calls(self, count: int, seconds: float = 30) -> None:
        """Until so many requests have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.calls) >= count, seconds), f"only {len(self.calls)} came"

    def take(self, api: str, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[Call, Act]:
        """Notes a request, and what it is answered."""
        with self._changed:
            call = Call(len(self.calls) + 1, api, path, headers, body)
            self.calls.append(call)
            self._changed.notify_all()
        if callable(self._script):
            return call, self._script(call)
        return call, self._script[call.number - 1] if call.number <= len(self._script) else Say()

    def bill(self, call: Call, usage: Usage, told: bool) -> None:
        """Notes what a call costs, instead of what was noted for it before."""
        with self._changed:
            self._bills[call.number] = Bill(call.number, call.model, usage, told)

    def done(self, call: Call) -> None:
        if self._answered is not None:
            self._answered(call)

    def __enter__(self) -> LlmServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    owner: LlmServer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def handle(self) -> None:
        with suppress(OSError):  # whoever called is gone
            super().handle()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        api = MESSAGES if path.endswith("/messages") else CHAT if path.endswith("/chat/completions") else None
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if api is None:
            self._whole(404, {}, b'{"error": {"message": "there is nothing here"}}')
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        call, act = self.server.owner.take(api, self.path, headers, body)
        match act:
            case Status():
                self._error(call, act)
            case Raw():
                self._whole(act.status, act.headers, act.body)
            case Hang(begun=False):
                self.server.owner.closed.wait(300)
                self.close_connection = True
            case Lose():
                self.close_connection = True
            case _:
                self._answer(call, act)

    def _answer(self, call: Call, act: Say | Cut | BadJson | Large | Drip | Hang) -> None:
        """An answer, sound or not. The books are right before a client can know."""
        owner, streams = self.server.owner, bool(call.body.get("stream"))
        say = _as_answer(act)
        whole = list((streamed if streams else plain)(call, say))
        frames, broken = _damaged(whole, act)
        owner.bill(call, usage_of(call, say), told=False)
        self._head(call, None if streams else len(whole[0].data))
        for frame in frames:
            self._send(frame.data[:-1], act.every if isinstance(act, Drip) else 0)
            if frame.tells is not None:
                owner.bill(call, frame.tells, told=True)
            self._send(frame.data[-1:], 0)
        if isinstance(act, Hang):
            owner.closed.wait(300)
        if broken:
            self.close_connection = True
            return
        if streams:
            self.wfile.write(b"0\r\n\r\n")
        owner.done(call)

    def _head(self, call: Call, length: int | None) -> None:
        self._chunked = length is None
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if self._chunked else "application/json")
        self.send_header("request-id" if call.api == MESSAGES else "x-request-id", f"req_{call.number}")
        self.send_header(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        self.end_headers()

    def _send(self, data: bytes, every: float) -> None:
        for part in [data] if not every else [data[at : at + 1] for at in range(len(data))]:
            if every and self.server.owner.closed.wait(every):
                raise ConnectionAbortedError
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part)

    def _error(self, call: Call, act: Status) -> None:
        kind = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error"}.get(
            act.code, "api_error"
        )
        wait = {} if act.retry_after is None else {"Retry-After": act.retry_after}
        body = json.dumps({"type": "error", "error": {"type": kind, "message": act.message, "code": kind}})
        self._whole(act.code, {"Content-Type": "application/json", **wait, **act.headers}, body.encode())
        self.server.owner.done(call)

    def _whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in {"Date": self.date_time_string(), **headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _as_answer(act: Say | Cut | BadJson | Large | Drip | Hang) -> Say:
    """The sound answer behind an act."""
    match act:
        case Say():
            return act
        case Cut():
            return Say(act.text, act.usage)
        case Large():
            return Say("x" * act.size, piece=65_536 if act.lines else act.size)
        case Hang():
            return Say("this answer never ends")
        case _:
            return Say(act.text)


def _damaged(frames: list[Frame], act: object) -> tuple[list[Frame], bool]:
    """What of an answer is sent, and whether the connection then breaks."""
    if isinstance(act, Cut):
        kept = frames[: act.after] if len(frames) > 1 else [Frame(frames[0].data[: len(frames[0].data) // 2])]
        return kept, not act.clean
    if isinstance(act, Hang):
        return frames[: len(frames) // 2], True
    if isinstance(act, BadJson):
        at = 2 if len(frames) > 1 else 0
        return [*frames[:at], Frame(frames[at].data.replace(b"}", b"]", 1)), *_unread(frames[at + 1 :])], False
    if isinstance(act, Large):
        at = 1 if len(frames) > 1 else 0
        return [*frames[:at], *_unread(frames[at:])], False
    return frames, False


def _unread(frames: list[Frame]) -> list[Frame]:
    """Nobody is expected to read as far as this: it tells nothing."""
    return [Frame(frame.data) for frame in frames]


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(*(sum(column) for column in zip(*usages, strict=True))) if usages else Usage()
