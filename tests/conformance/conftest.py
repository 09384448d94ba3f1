"""Beside the `store` of each kind: one whose time the test sets, and a hand on the database under it.

On PostgreSQL the tests of one process share a database that is emptied before each of them; making a new one takes many
times as long as most of these tests. What changes the schema takes `postgres_copy`, or puts it back.
"""

from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import pytest

from keptwork.store import Store, open_store
from tests.conformance.by_hand import Hand, hand_on
from tests.conformance.times import DEFINITION, PostgresClock, SetClock, SqliteClock
from tests.support.postgres_server import PostgresServer
from tests.support.postgres_stock import EMPTY


@pytest.fixture(scope="session")
def shared_database(postgres_server: PostgresServer, migrated_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database for all tests of this process."""
    url = postgres_server.create_database(template=migrated_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def emptied_database(postgres_server: PostgresServer, shared_database: str) -> str:
    """The same, with nothing in it."""
    postgres_server.superuser_sql(EMPTY, database=urlsplit(shared_database).path.lstrip("/"))
    return shared_database


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest) -> str:
    """An empty migrated database, once of each kind."""
    return str(request.getfixturevalue("sqlite_copy" if request.param == "sqlite" else "emptied_database"))


@pytest.fixture
async def postgres_store(emptied_database: str) -> AsyncIterator[Store]:
    """An open store on PostgreSQL, for what only it promises."""
    opened = await open_store(emptied_database)
    yield opened
    await opened.close()


@pytest.fixture
async def hand(database_url: str) -> AsyncIterator[Hand]:
    """Plain SQL on the database of the test's store."""
    opened = await hand_on(database_url)
    yield opened
    await opened.close()


@pytest.fixture
async def clock(database_url: str) -> AsyncIterator[SetClock]:
    """The time of `timed`."""
    if database_url.startswith("sqlite"):
        yield SqliteClock()
        return
    hand = await hand_on(database_url)
    ((original,),) = await hand.run(DEFINITION)
    clock = PostgresClock(hand)
    await clock.advance(0)
    yield clock
    await hand.run(original)
    await hand.close()


@pytest.fixture
async def timed(database_url: str, clock: SetClock) -> AsyncIterator[Store]:
    """An open store whose time stands still until `clock` is advanced."""
    opened = await open_store(database_url, clock=clock.manual if isinstance(clock, SqliteClock) else None)
    yield opened
    await opened.close()


@pytest.fixture
async def other_tenant(hand: Hand, request: pytest.FixtureRequest) -> int:
    """A second tenant beside the default one; there is no verb for it yet."""
    request.getfixturevalue("timed" if "timed" in request.fixturenames else "store")  # the tables must be there
    await hand.run("INSERT INTO tenants (id, name, created_at) VALUES (2, 'other', 0)")
    return 2
