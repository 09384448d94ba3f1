"""Servers that a client may meet and that are none of ours: one that answers as told, one that loses answers."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NamedTuple


class Reply(NamedTuple):
    status: int
    body: bytes = b"{}"
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "application/json"),)


class Got(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class OddServer:
    """Answers one reply after the other, the last one again and again, and keeps what it was asked."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.got: list[Got] = []
        self.address = ""

    def reply(self, got: Got) -> Reply:
        self.got.append(got)
        return self.replies[min(len(self.got), len(self.replies)) - 1]


@contextmanager
def odd_server(*replies: Reply) -> Iterator[OddServer]:
    odd = OddServer(*replies)
    handler = type("Handler", (_Handler,), {"odd": odd})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        odd.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield odd
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    odd: ClassVar[OddServer]

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        reply = self.odd.reply(Got(self.command, self.path, headers, body))
        self.send_response(reply.status)
        for name, value in (*reply.headers, ("Content-Length", str(len(reply.body)))):
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(reply.body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """It says nothing."""


class LosingProxy(socketserver.ThreadingTCPServer):
    """Passes everything on, but loses the next so many answers: the request is done, and nobody hears of it."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int) -> None:
        self.upstream = port
        self.to_lose = self.lost = 0
        self.refusing = False
        self.passed_on = b""
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Connection)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def cut(self) -> None:
        """Ends all connections there are."""
        for one in list(self.open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def loses(self) -> bool:
        lost = self.to_lose > 0
        self.to_lose -= lost
        self.lost += lost
        return lost


class _Connection(socketserver.BaseRequestHandler):
    server: LosingProxy
    request: socket.socket

    def handle(self) -> None:
        if self.server.refusing:
            return
        self.server.open.add(self.request)
        with socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream:
            threading.Thread(target=self._pass_on, args=(upstream,), daemon=True).start()
            with contextlib.suppress(OSError):
                while (said := upstream.recv(1 << 16)) and not self.server.loses():
                    self.request.sendall(said)
                    self.server.passed_on += said
            for end in (self.request, upstream):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self.server.open.discard(self.request)

    def _pass_on(self, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := self.request.recv(1 << 16):
                upstream.sendall(said)
            upstream.shutdown(socket.SHUT_WR)


@contextmanager
def losing_proxy(port: int) -> Iterator[LosingProxy]:
    with LosingProxy(port) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()
            thread.join()
