"""A way to a PostgreSQL server that loses answers: the statement is done and committed, and nobody hears of it.

It stands between client and server and passes everything on. An answer that is to be lost is awaited to its end, which
the server sends after it has committed; then the connection is cut instead of passing it on, the server's side first.
"""

from __future__ import annotations

import contextlib
import random
import socket
import socketserver
import struct
import threading
from urllib.parse import urlsplit

HOST = "127.0.0.1"
ENCRYPTION_REQUESTS = (80877103, 80877104)
DONE, READY = b"C", b"Z"


class LossyProxy:
    """Loses the answers it is told to, or any at random; until then none."""

    def __init__(self, url: str, seed: int = 0) -> None:
        self.server = urlsplit(url).hostname or HOST, urlsplit(url).port or 5432
        self.lost = 0
        self._until_lost = 0
        self._chance = 0.0
        self._dice = random.Random(seed)
        self._lock = threading.Lock()
        self._proxy = _Proxy(self)
        port = self._proxy.server_address[1]
        self.url = url.replace(f":{self.server[1]}/", f":{port}/")
        self._thread = threading.Thread(target=self._proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def lose(self, number: int) -> None:
        """The answer of that number, counted from now, is lost; 0 means none."""
        with self._lock:
            self._until_lost = number

    def lose_at_random(self, chance: float) -> None:
        """From now on each answer is lost with this chance."""
        with self._lock:
            self._chance = chance

    def is_to_be_lost(self) -> bool:
        """Asked for every answer, once it is complete."""
        with self._lock:
            self._until_lost -= 1
            loses = self._until_lost == 0 or self._dice.random() < self._chance
            self.lost += loses
            return loses

    def close(self) -> None:
        self._proxy.shutdown()
        self._proxy.server_close()
        self._thread.join()


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, owner: LossyProxy) -> None:
        self.owner = owner
        super().__init__((HOST, 0), _Connection)


class _Connection(socketserver.BaseRequestHandler):
    """One client: what it says is passed on as it comes, what it is answered message by message."""

    server: _Proxy
    request: socket.socket

    def handle(self) -> None:
        upstream = socket.create_connection(self.server.owner.server)
        for each in (upstream, self.request):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with upstream, contextlib.suppress(OSError, EOFError):
            upstream.sendall(self._greeting())
            threading.Thread(target=self._pass_on, args=(upstream,), daemon=True).start()
            self._answer(upstream)
        with contextlib.suppress(OSError):
            self.request.shutdown(socket.SHUT_RDWR)

    def _greeting(self) -> bytes:
        """The first message, which alone has no type. Encryption is declined: nothing could be seen through it."""
        while True:
            length, code = struct.unpack("!II", head := _exactly(self.request, 8))
            if code not in ENCRYPTION_REQUESTS:
                return head + _exactly(self.request, length - 8)
            self.request.sendall(b"N")

    def _pass_on(self, upstream: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := self.request.recv(1 << 16):
                upstream.sendall(said)
            upstream.shutdown(socket.SHUT_WR)

    def _answer(self, upstream: socket.socket) -> None:
        """The end of an answer is held back until the server is ready again, that is until it has committed."""
        held = b""
        while True:
            head = _exactly(upstream, 5)
            message = head + _exactly(upstream, int.from_bytes(head[1:], "big") - 4)
            if held or head[:1] == DONE:
                held += message
                if head[:1] != READY:
                    continue
                if self.server.owner.is_to_be_lost():
                    _hang_up(upstream)
                    return
                message, held = held, b""
            self.request.sendall(message)


def _hang_up(upstream: socket.socket) -> None:
    """Returns when the server has undone what was open. Whoever asks again at once would else find the rows locked by
    its former self, and calls that skip what others are busy with would skip them."""
    upstream.shutdown(socket.SHUT_WR)
    while upstream.recv(1 << 16):
        pass


def _exactly(connection: socket.socket, count: int) -> bytes:
    read = b""
    while len(read) < count:
        more = connection.recv(count - len(read))
        if not more:
            raise EOFError
        read += more
    return read
