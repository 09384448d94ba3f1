"""Running servers: uvicorn in a thread of its own on loopback, one over each kind of database, for all tests.

Every test has two tenants of its own there, so that it begins with nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import pytest
from fastapi import FastAPI

from keptwork.access.scopes import Scope
from keptwork.dashboard.site import install
from keptwork.http.app import create_app
from keptwork.http.auth import Caller, Principal
from keptwork.http.rate_limit import Limits
from keptwork.http.server import Server, server
from keptwork.store import Store, open_store
from tests.http.declared import check_declared

T = TypeVar("T")

OURS, THEIRS, READER, NOBODY = "kw_ours", "kw_theirs", "kw_reader", "kw_nobody"

_numbers = itertools.count(1)


@dataclass
class Keys:
    """The keys of a test, kept nowhere."""

    known: dict[str, Caller] = field(default_factory=dict)

    async def authenticate(self, token: str) -> Principal | None:
        return self.known.get(token)


@dataclass
class Running:
    """A server that answers, and how to reach it."""

    address: str
    keys: Keys
    server: Server
    thread: threading.Thread
    app: FastAPI
    loop: asyncio.AbstractEventLoop
    url: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def ours(self) -> int:
        return self.keys.known[OURS].tenant_id

    def client(self, token: str | None = OURS) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        hooks = {"response": [check_declared]}
        return httpx.Client(base_url=self.address, headers=headers, timeout=30, event_hooks=hooks)

    def do(self, work: Callable[[Store], Awaitable[T]]) -> T:
        """Something done by the server's own store, on its own loop."""

        async def done() -> T:
            return await work(self.app.state.store)

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(60)

    def stop(self) -> None:
        self.server.end()
        self.thread.join(60)
        assert not self.thread.is_alive()


@contextmanager
def serving(url: str, keys: Keys, limits: Limits | None = None) -> Iterator[Running]:
    """A server of this database, which it makes if there is none, until the block ends."""
    listening = socket.socket(proto=socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 14)  # so that it is noticed who does not read
    listening.bind(("127.0.0.1", 0))
    begun: queue.SimpleQueue[tuple[Server, FastAPI, asyncio.AbstractEventLoop]] = queue.SimpleQueue()

    async def serve() -> None:
        store = await open_store(url)
        app = create_app(store, keys.authenticate, limits)
        install(app)
        made = server(app, "127.0.0.1", 0)
        begun.put((made, app, asyncio.get_running_loop()))
        await made.serve([listening])
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    made, app, loop = begun.get(timeout=30)
    while not made.started:
        assert thread.is_alive(), "the server has ended before it began"
        thread.join(0.01)
    running = Running(f"http://127.0.0.1:{listening.getsockname()[1]}", keys, made, thread, app, loop, url)
    try:
        yield running
    finally:
        running.stop()
        listening.close()


def two_tenants(running: Running) -> None:
    """Ours has one key for all but administration, one that only reads and one that may do nothing."""
    number = next(_numbers)
    ours = running.do(lambda store: store.add_tenant(f"ours-{number}"))
    theirs = running.do(lambda store: store.add_tenant(f"theirs-{number}"))
    running.keys.known = {
        OURS: Caller(ours, frozenset(Scope) - {"admin"}, "key:k1"),
        READER: Caller(ours, frozenset({"read"}), "key:k2"),
        NOBODY: Caller(ours, frozenset(), "key:k3"),
        THEIRS: Caller(theirs, frozenset(Scope), "key:k4"),
    }


SHORT = Limits(
    body_seconds=0.5, header_seconds=0.5, header_bytes=4096, recheck_seconds=0.2, beat_seconds=0.1, write_seconds=0.5
)


@pytest.fixture(scope="session")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('strict')}/keptwork.db", Keys(), SHORT) as started:
        yield started


@pytest.fixture
def strict(strict_server: Running) -> Running:
    """A server without patience, with two new tenants."""
    two_tenants(strict_server)
    return strict_server


@pytest.fixture(scope="session")
def sqlite_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(f"sqlite:///{tmp_path_factory.mktemp('http')}/keptwork.db", Keys()) as started:
        yield started


@pytest.fixture(scope="session")
def postgres_http_server(postgres_server: Any, migrated_template: str) -> Iterator[Running]:
    url = postgres_server.create_database(template=urlsplit(migrated_template).path.lstrip("/"))
    with serving(url, Keys()) as started:
        yield started
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def running(request: pytest.FixtureRequest) -> Running:
    """A server over each kind of database, with two new tenants."""
    name = "sqlite_server" if request.param == "sqlite" else "postgres_http_server"
    found: Running = request.getfixturevalue(name)
    two_tenants(found)
    return found


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as opened:
        yield opened
