"""Send messages between processes: a length and then JSON, which runs nothing when it is read."""

from __future__ import annotations

import json
import os
import socket
import struct
from typing import Any

HEADER = struct.Struct("!I")
LARGEST = 32 << 20
MOST_DESCRIPTORS = 3

STOP = b"s"
"""Asks a process to stop, between messages. No message is long enough for its header to start with this byte."""

ASIDE = b"?"
"""Prefix of a request that a process sends before its answer. An answer never starts with it, because it is JSON."""


def framed(document: Any) -> bytes:
    """Return the document as a message."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


def body_length(header: bytes, largest: int = LARGEST) -> int:
    """Return the length of the body. Raise for a message that is too long, before it is read."""
    length = int(HEADER.unpack(header)[0])
    if length > largest:
        raise ValueError(f"a message of {length:,} bytes is over the limit of {largest:,}")
    return length


def receive(line: socket.socket) -> tuple[Any, list[int]] | None:
    """Wait for the next message and return it with its file descriptors. Return None if the connection was closed."""
    try:
        header, descriptors, _, _ = socket.recv_fds(line, HEADER.size, MOST_DESCRIPTORS)
        rest = _exactly(line, HEADER.size - len(header)) if header else None
        body = None if rest is None else _exactly(line, body_length(header + rest))
    except ConnectionError:
        return None
    if body is None:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    return json.loads(body), descriptors


def _exactly(line: socket.socket, length: int) -> bytes | None:
    received = bytearray()
    while len(received) < length:
        more = line.recv(length - len(received))
        if not more:
            return None
        received += more
    return bytes(received)
