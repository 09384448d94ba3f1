"""`keptwork serve` in a process of its own, for clients to ask; it can be ended and started again at the same place."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from keptwork.access import api_keys
from keptwork.store import open_store
from tests.support import command
from tests.support.dev_server import announced

_numbers = itertools.count(1)


@dataclass
class Served:
    """A server of a database; `key` makes a tenant of its own for each test."""

    url: str
    port: int
    process: subprocess.Popen[str]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, *scopes: str) -> str:
        """A new tenant's key, for these scopes or all."""

        async def made() -> str:
            store = await open_store(self.url)
            tenant = await store.add_tenant(f"client-{next(_numbers)}")
            key = await api_keys.create(store, tenant, "tests", scopes or ("admin",), by="tests")
            await store.close()
            return key.secret.value

        return asyncio.run(made())

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(how)
        self.process.communicate(timeout=30)

    def start(self) -> None:
        self.process = _process(self.url, self.port)
        announced(self.process)


@contextmanager
def served(url: str) -> Iterator[Served]:
    """A server until the block ends."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    running = Served(url, port, _process(url, port))
    try:
        announced(running.process)
        yield running
    finally:
        if running.process.poll() is None:
            running.stop()


def _process(url: str, port: int) -> subprocess.Popen[str]:
    return command.start("serve", "--port", str(port), "--db", url, "--json")
