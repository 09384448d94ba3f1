"""A Redis of our own for a moment: the installed one, or the one that a Python package brings along.

Nothing is written to disk: a broker in memory is the configuration its peers are fastest in.
"""

import shutil
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.peers.environment import NotInstalled, installed
from bench.peers.server import free_ports, running

START_SECONDS = 10


def binary() -> str:
    """Where redis-server is."""
    if found := shutil.which("redis-server"):
        return found
    try:
        return str(installed("redis") / "bin" / "redis-server")
    except NotInstalled:
        raise NotInstalled("there is no redis-server; apt install redis-server (or brew install redis)") from None


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """An empty broker; gives its URL."""
    (port,) = free_ports(1)
    argv = [binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    memory_only = ["--save", "", "--appendonly", "no"]
    with running([*argv, *memory_only], lambda: _answers(port), START_SECONDS, folder / "redis.log"):
        yield f"redis://127.0.0.1:{port}/0"


def _answers(port: int) -> bool:
    try:
        with closing(socket.create_connection(("127.0.0.1", port), 1)) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False
