"""A migrated database and a hand on it, once of each kind."""

from collections.abc import Iterator

import pytest

from keptwork.store import open_store
from keptwork.store.url import database_url as parsed
from tests.store.hands import Hand, PostgresHand, SqliteHand


@pytest.fixture
async def prepared(database_url: str) -> str:
    """The URL of a database that has been opened and closed by the product, and is empty."""
    await (await open_store(database_url)).close()
    return database_url


def hand_on(url: str) -> Hand:
    """A plain connection to a database."""
    target = parsed(url)
    return SqliteHand(target.path) if target.dialect == "sqlite" else PostgresHand(url)


@pytest.fixture
def hand(prepared: str) -> Iterator[Hand]:
    """A connection that knows nothing of the product."""
    opened = hand_on(prepared)
    yield opened
    opened.close()


@pytest.fixture
def trying(hand: Hand) -> Iterator[Hand]:
    """The same inside a transaction, which is what a checker needs: everything it does is undone."""
    hand.run("BEGIN")
    yield hand
    hand.run("ROLLBACK")
