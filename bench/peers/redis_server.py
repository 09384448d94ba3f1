"""A Redis of our own for a moment: the installed one, or the one that a Python package brings along.

Nothing is written to disk: a broker in memory is the configuration its peers are fastest in.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from bench.peers.environment import NotInstalled, installed

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
    port = _free_port()
    argv = [binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)]
    memory_only = ["--save", "", "--appendonly", "no"]
    server = subprocess.Popen([*argv, *memory_only], stdout=subprocess.DEVNULL)
    try:
        _wait_for(port)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)) as connection:
            connection.sendall(b"PING\r\n")
            if connection.recv(16).startswith(b"+PONG"):
                return
        time.sleep(0.02)
    raise NotInstalled(f"redis-server did not answer within {START_SECONDS} s")
