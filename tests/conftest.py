"""Databases for every test: a SQLite file, or an empty database on a real PostgreSQL server.

The server starts with the first test that asks for it. A test that stops or crashes a server starts its own.
"""

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keptwork.store import Store, open_store
from tests.support import postgres_server as postgres
from tests.support import postgres_watchdog
from tests.support.postgres_stock import Stock

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what is to run in the background so, and the programs that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

HELPERS = ("tests.support.forked_command", str(postgres_watchdog.__file__))
"""Programs of the test suite that any test may start: they fork commands and clean up after a PostgreSQL server."""

_running: list[pytest.Item] = []


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Only a test marked `acceptance` or `chaos` may start Python in another process, or fork."""
    if event not in ("subprocess.Popen", "os.fork") or not _running:
        return
    argv = [os.fsdecode(part) for part in arguments[1]] if event == "subprocess.Popen" else [sys.executable]
    if Path(argv[0]).name.startswith("python") and not set(HELPERS) & set(argv):
        raise PermissionError(f"a test that starts a process of ours is marked `acceptance`: {argv}")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not any(item.get_closest_marker(mark) for mark in ("acceptance", "chaos")):
        _running.append(item)
    try:
        return (yield)
    finally:
        _running.clear()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """This process's server: create databases on it, do not stop it.

    Each xdist worker has one of its own, because readers of the log wait for the oldest open transaction of the whole
    server, and must not wait for another worker's tests. Nor for an ANALYZE in the background.
    """
    with postgres.start(settings={"autovacuum": "off"}) as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """An empty database of this test's own."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keptwork.db"


def _migrate(url: str) -> None:
    """In a thread of its own: in this one a browser's loop may be running."""

    async def migrate() -> None:
        await (await open_store(url)).close()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(migrate())).result()


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the whole schema, to copy: copying takes a tenth of migrating."""
    file = tmp_path_factory.mktemp("migrated") / "keptwork.db"
    _migrate(f"sqlite:///{file}")
    return file


@pytest.fixture
def sqlite_copy(sqlite_url: str, migrated_file: Path) -> str:
    """A migrated file of this test's own."""
    shutil.copy(migrated_file, sqlite_url.removeprefix("sqlite:///"))
    return sqlite_url


@pytest.fixture(scope="session")
def migrated_template(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """The same on the server."""
    url = postgres_server.create_database()
    _migrate(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def postgres_stock(postgres_server: postgres.PostgresServer, migrated_template: str) -> Iterator[Stock]:
    """Copies of it, each for one test at a time."""
    stock = Stock(postgres_server, migrated_template)
    yield stock
    stock.close()


@pytest.fixture
def postgres_copy(postgres_stock: Stock) -> Iterator[str]:
    """A migrated database with nothing in it."""
    url = postgres_stock.take()
    yield url
    postgres_stock.give_back(url)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database with nothing in it, once of each kind."""
    return str(request.getfixturevalue(f"{request.param}_copy"))


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """An open store, once of each kind."""
    opened = await open_store(database_url)
    yield opened
    await opened.close()
