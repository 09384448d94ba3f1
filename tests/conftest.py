"""Databases for every test: a SQLite file, or an empty database on one real PostgreSQL server per session.

Under xdist the controller starts the server and the workers find its address in the environment; without
xdist it starts with the first test that asks for it. A test that stops or crashes a server starts its own.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from detent.store import Store, open_store
from tests.support import postgres_server as postgres
from tests.support.postgres_binaries import NoPostgres

ADDRESS = "DETENT_TEST_POSTGRES"


def pytest_sessionstart(session: pytest.Session) -> None:
    # Runs before xdist's own hook, which starts the workers: they inherit the variable.
    config = session.config
    if not _is_xdist_controller(config) or ADDRESS in os.environ:
        return
    try:
        server = postgres.start()
    except NoPostgres:
        return  # the tests that need it will say so
    os.environ[ADDRESS] = server.address
    config.add_cleanup(server.close)


def _is_xdist_controller(config: pytest.Config) -> bool:
    is_worker = hasattr(config, "workerinput")
    runs_tests = not config.getoption("collectonly")
    return bool(config.getoption("numprocesses", None)) and runs_tests and not is_worker


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """The session's server, shared by all workers: create databases on it, do not stop it."""
    if address := os.environ.get(ADDRESS):
        yield postgres.PostgresServer.attach(address)
        return
    with postgres.start() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """An empty database of this test's own."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/detent.db"


@pytest.fixture(scope="session")
def migrated_template(postgres_server: postgres.PostgresServer) -> Iterator[str]:
    """A database with the whole schema, to copy: copying takes a tenth of migrating."""
    url = postgres_server.create_database()

    async def migrate() -> None:
        await (await open_store(url)).close()

    asyncio.run(migrate())
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated database of this test's own, once of each kind."""
    if request.param == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    server: postgres.PostgresServer = request.getfixturevalue("postgres_server")
    template = urlsplit(request.getfixturevalue("migrated_template")).path.lstrip("/")
    url = server.create_database(template=template)
    yield url
    server.drop_database(url)


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    """An open store, once of each kind."""
    opened = await open_store(database_url)
    yield opened
    await opened.close()
