"""The Prefect server for a moment, as it comes: an API of its own over a SQLite file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.environment import installed
from bench.peers.prefect.settings import settings
from bench.peers.server import free_ports, healthy, running

START_SECONDS = 60


@contextmanager
def started(folder: Path) -> Iterator[str]:
    """An empty server; gives the address of its API."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}/api"
    prefect = str(installed("prefect") / "bin" / "prefect")
    argv = [prefect, "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, **settings(str(folder))}
    with running(argv, lambda: healthy(f"{url}/health"), START_SECONDS, folder / "prefect.log", env):
        yield url
