"""What a page of a sweep reads on PostgreSQL: its own rows, and never a whole table beside them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import asyncpg
import pytest

from bench import past
from keptwork.store import open_store
from keptwork.store.dialect import POSTGRES
from keptwork.store.statements import Catalogue
from tests.support.ended_flows import ended_flows
from tests.support.postgres_server import PostgresServer

GIVEN = {"before": json.dumps({}), "keyed_before": None, "tenant_id": None, "after": 0, "limit": 2_000, "newest": 0}
READS = ("prunable_jobs", "prunable_workstreams")
WHOLE = "hashed SubPlan"
"""How the planner says that it reads all of a table to answer a question for each row."""


@pytest.fixture
async def connection(postgres_server: PostgresServer, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """To a database with some jobs and flows, of which the planner knows."""
    store = await open_store(postgres_url)
    past.fill_postgres(postgres_server, postgres_url, 3_000, await store.now())
    await ended_flows(store, 300, 3)
    await store.close()
    connection = await asyncpg.connect(postgres_url)
    await connection.execute("ANALYZE")
    yield connection
    await connection.close()


async def plan(connection: asyncpg.Connection, name: str, without: str | None = None) -> str:
    sql, parameters = Catalogue(POSTGRES)[name]
    statement = await connection.prepare(f"EXPLAIN VERBOSE {sql.replace(without, '') if without else sql}")
    return "\n".join(line for (line,) in await statement.fetch(*(GIVEN[name] for name in parameters)))


async def test_a_page_of_a_sweep_reads_no_other_table_as_a_whole(connection: asyncpg.Connection) -> None:
    for name in READS:
        assert WHOLE not in await plan(connection, name)


async def test_without_the_words_that_forbid_it_the_planner_would_and_the_check_sees_it(
    connection: asyncpg.Connection,
) -> None:
    for name in READS:
        assert WHOLE in await plan(connection, name, without=POSTGRES.words["by_itself"])
