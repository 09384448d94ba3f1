"""Messages between processes: a length and then JSON, never anything that runs when it is read."""

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
"""Asks a process to come to an end, between messages: no message is long enough to begin with this byte."""

ASIDE = b"?"
"""Begins what a process asks before it answers; nothing else does, for an answer is JSON."""


def framed(document: Any) -> bytes:
    """A message, ready to be sent."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body


def body_length(header: bytes, largest: int = LARGEST) -> int:
    """How much follows; a message that is too long is refused before it is read."""
    length = int(HEADER.unpack(header)[0])
    if length > largest:
        raise ValueError(f"a message of {length:,} bytes is over the limit of {largest:,}")
    return length


def receive(line: socket.socket) -> tuple[Any, list[int]] | None:
    """The next message and the file descriptors that came with it, waited for; none when the other side hung up."""
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
