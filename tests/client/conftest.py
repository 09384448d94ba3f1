"""Servers in processes of their own, one over each kind of database, for all tests of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from keptwork.store import open_store
from tests.client.serving import Served, served


@pytest.fixture(scope="session")
def sqlite_served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    url = f"sqlite:///{tmp_path_factory.mktemp('client')}/keptwork.db"

    async def migrate() -> None:
        await (await open_store(url)).close()

    asyncio.run(migrate())
    with served(url) as started:
        yield started


@pytest.fixture(scope="session")
def postgres_served(postgres_server: Any, migrated_template: str) -> Iterator[Served]:
    url = postgres_server.create_database(template=urlsplit(migrated_template).path.lstrip("/"))
    with served(url) as started:
        yield started
    postgres_server.drop_database(url)


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> Served:
    """A server over each kind of database."""
    found: Served = request.getfixturevalue(f"{request.param}_served")
    return found


@pytest.fixture
def key(server: Served) -> str:
    """The key of a tenant of this test's own."""
    return server.key()
