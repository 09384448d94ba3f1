"""Databases that are used again: only those in which nobody could tell."""

from __future__ import annotations

from collections.abc import Iterator

import asyncpg
import pytest

from keptwork.store import NewJob, open_store
from tests.support.database_time import open_timed
from tests.support.postgres_server import PostgresServer
from tests.support.postgres_stock import MOST_USES, Stock


@pytest.fixture
def stock(postgres_server: PostgresServer, migrated_template: str) -> Iterator[Stock]:
    made = Stock(postgres_server, migrated_template)
    yield made
    made.close()


async def test_what_was_kept_in_one_is_not_there_for_the_next(stock: Stock) -> None:
    urls = set()
    for _ in range(2):
        urls.add(url := stock.take())
        store = await open_store(url)
        assert await store.jobs(limit=9, columns=("id",)) == []
        await store.enqueue([NewJob("k")] * 3)
        assert [event.id for event in await store.events()] == [1, 2, 3]
        await store.close()
        stock.give_back(url)
    assert len(urls) == 1


async def test_one_whose_time_was_moved_and_put_back_is_used_again(stock: Stock) -> None:
    first = stock.take()
    await (await open_timed(first)).close()
    stock.give_back(first)
    assert stock.take() == first
    stock.give_back(first)


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE mine (id int)",
        "ALTER TABLE jobs DISABLE TRIGGER USER",
        "CREATE OR REPLACE FUNCTION keptwork_now() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
        "ANALYZE jobs",
        "INSERT INTO keptwork_migrations (number, name, applied_at) VALUES (999, 'future', 0)",
    ],
)
async def test_one_whose_schema_was_changed_is_not_used_again(stock: Stock, change: str) -> None:
    url = stock.take()
    hand = await asyncpg.connect(url)
    await hand.execute(change)
    await hand.close()
    stock.give_back(url)
    assert stock.take() != url


async def test_one_that_somebody_is_connected_to_is_not_used_again(stock: Stock) -> None:
    url = stock.take()
    hand = await asyncpg.connect(url)
    stock.give_back(url)
    assert stock.take() != url
    await hand.close()


def test_one_that_was_used_often_makes_way(stock: Stock) -> None:
    urls = []
    for _ in range(MOST_USES + 1):
        urls.append(stock.take())
        stock.give_back(urls[-1])
    assert len(set(urls)) == 2
    assert urls[-1] != urls[-2]
