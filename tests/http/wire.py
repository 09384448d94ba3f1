"""Clients that write to the wire by themselves, to say what no library would."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.http.conftest import OURS, Running


def connected(running: Running, receive_buffer: int | None = None) -> socket.socket:
    """A connection to the server; with a small buffer what is not read soon stops the sender."""
    wire = socket.socket()
    if receive_buffer is not None:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    wire.settimeout(10)
    wire.connect(("127.0.0.1", running.port))
    return wire


def exchanged(running: Running, *parts: bytes) -> tuple[int, dict[str, Any]]:
    """The status and the document that these bytes are answered with."""
    with connected(running) as wire:
        for part in parts:
            wire.sendall(part)
        said = b""
        while chunk := wire.recv(65536):
            said += chunk
    top, _, body = said.partition(b"\r\n\r\n")
    return int(top.split()[1]), json.loads(body)


def head(method: str, path: str, *more: str) -> bytes:
    """The head of a request of ours."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {OURS}", *more, "", ""]
    return "\r\n".join(lines).encode()
