"""A server on this machine that webhooks are sent to: it keeps what it gets, checks signatures, and answers as told.

`hooks.pem` is the certificate and key of hooks.example; it is good for nothing else.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from keptwork.webhooks import verify

CERTIFICATE = Path(__file__).with_name("hooks.pem")
HOST = "hooks.example"
SECRET = "a secret that is only used in tests"
LOSE, HANG = 0, -1
"""Instead of a status: the connection is closed without an answer, or there is none at all."""


class Got(NamedTuple):
    """One request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def name(self) -> str:
        return self.headers["Keptwork-Delivery"]

    def signed_with(self, secret: str) -> bool:
        said = self.headers["Keptwork-Signature"], self.headers["Keptwork-Timestamp"]
        return verify(secret.encode(), *said, self.body, time.time())


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str] = {}


Answers = Callable[[int], Reply]
"""What the request of that number, from one on, is answered."""


class HookServer:
    """One that is up."""

    def __init__(self, server: ThreadingHTTPServer, scheme: str, answers: Answers) -> None:
        self.got: list[Got] = []
        self.connections = 0
        self.port = server.server_address[1]
        self.address = f"{server.server_address[0]!s}"
        self.scheme = scheme
        self.answers = answers
        self._lock = threading.Lock()
        self.closed = threading.Event()

    def url(self, host: str | None = None) -> str:
        return f"{self.scheme}://{host or self.address}:{self.port}/hooks?token=abc"

    def take(self, got: Got) -> Reply:
        with self._lock:
            self.got.append(got)
            number = len(self.got)
        return self.answers(number)


@contextmanager
def hook_server(
    answers: Answers = lambda number: Reply(204), *, tls: bool = False, address: str = "127.0.0.1", port: int = 0
) -> Iterator[HookServer]:
    """A server that is up in the block, on threads of its own."""
    server = ThreadingHTTPServer((address, port), _Handler)
    server.daemon_threads = True
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    hooks = HookServer(server, "https" if tls else "http", answers)
    _Handler.servers[server] = hooks
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hooks
    finally:
        hooks.closed.set()
        server.shutdown()
        server.server_close()
        thread.join()
        del _Handler.servers[server]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    servers: dict[object, HookServer] = {}  # noqa: RUF012 - the one way from a handler to its server's owner

    def handle(self) -> None:
        self.servers[self.server].connections += 1
        with suppress(OSError):  # whoever called is gone, or did not like the certificate
            super().handle()

    def do_POST(self) -> None:
        hooks = self.servers[self.server]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        reply = hooks.take(Got(self.path, dict(self.headers), body))
        self.close_connection = True
        if reply.status == HANG:
            hooks.closed.wait(60)
        if reply.status <= 0:
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""
