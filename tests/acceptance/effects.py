"""A sink outside the product, as a payment service or a mail gateway would be: it counts what jobs do to the world.

It honours the idempotency key it is sent (one effect per key, however often it is delivered) and the fencing token (a
later token takes the effect over, an earlier one is refused). It lives in the test's process and is reached over TCP,
so that killing or stopping a worker cannot take its records along.
"""

from __future__ import annotations

import json
import os
import socket
import socketserver
import threading
import time
from typing import Any, NamedTuple

HOST = "127.0.0.1"


class Delivery(NamedTuple):
    """One call of a handler: which job and step of the test it was for, and under which key and token."""

    key: str
    job: int
    step: str
    token: int
    pid: int
    at: float


class Sink:
    """Takes deliveries from any number of processes."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.kept: dict[str, Delivery] = {}
        self.refused: list[Delivery] = []
        self._lock = threading.Lock()
        self._server = _Server(self)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def take(self, fields: dict[str, Any]) -> bool:
        """Keeps the effect if it is the first of its key or carries a later token; says whether it is the one kept."""
        delivery = Delivery(**fields, at=time.time())
        with self._lock:
            self.deliveries.append(delivery)
            before = self.kept.get(delivery.key)
            if before is not None and delivery.token < before.token:
                self.refused.append(delivery)
                return False
            if before is None or delivery.token > before.token:
                self.kept[delivery.key] = delivery
            return True

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Line(socketserver.StreamRequestHandler):
    """One worker's connection: a line of JSON each way."""

    server: _Server
    disable_nagle_algorithm = True

    def handle(self) -> None:
        try:
            for line in self.rfile:
                self.wfile.write(b"kept\n" if self.server.sink.take(json.loads(line)) else b"late\n")
        except (ConnectionError, json.JSONDecodeError):
            return  # the worker was killed, perhaps in the middle of a line


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        super().__init__((HOST, 0), _Line)


class Outlet:
    """A worker's end of the line. A delivery blocks until it is answered: nothing but death can cut it in half."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def deliver(self, key: str, job: int, step: str, token: int) -> bool:
        fields = {"key": key, "job": job, "step": step, "token": token, "pid": os.getpid()}
        self._socket.sendall(json.dumps(fields).encode() + b"\n")
        return self._answers.readline() == b"kept\n"

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
