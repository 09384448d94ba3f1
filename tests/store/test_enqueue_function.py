"""`keptwork_enqueue(…)`: the door for any driver on PostgreSQL, as psql and a plain connection find it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keptwork import Keptwork
from keptwork.audit import verify
from keptwork.context import Context
from keptwork.core import ids
from keptwork.core.lifecycles import JOB
from keptwork.core.validation import LARGEST_INT, LARGEST_PAYLOAD, LONGEST_KEY, LONGEST_NAME
from keptwork.store import Store, open_store
from keptwork.store.postgres.connections_server import SESSION_SETTINGS
from tests.conformance.stage import entity, log
from tests.store import clients
from tests.support.postgres_server import PostgresServer
from tests.test_readme import blocks


@pytest.fixture
def url(postgres_server: PostgresServer, migrated_template: str) -> Any:
    made = postgres_server.create_database(template=migrated_template)
    yield made
    postgres_server.drop_database(made)


@pytest.fixture
async def opened(url: str) -> AsyncIterator[Store]:
    """The product's own view, audited at the end: every row has its events, and they replay to it."""
    store = await open_store(url)
    yield store
    verdict = await verify.verify(store)
    assert verdict.clean, verdict.problems
    await store.close()


@asynccontextmanager
async def plain(url: str, **options: Any) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url, **options)
    try:
        yield connection
    finally:
        await connection.close()


async def enqueue(connection: asyncpg.Connection, arguments: str, *values: Any) -> str:
    return str(await connection.fetchval(f"SELECT keptwork_enqueue({arguments})", *values))


def key_of(id: str) -> int:
    prefix, key = ids.key_of(id) or ("", 0)
    assert prefix == "job"
    return key


async def test_psql_enqueues_a_job_with_one_event(opened: Store, url: str, postgres_server: PostgresServer) -> None:
    psql = clients.psql(str(postgres_server.bin("psql")), url)
    said = psql(
        """SELECT keptwork_enqueue('mail', '{"to": "ann"}', queue => 'post', priority => 5, key => 'order-17')"""
    )
    assert said.code == 0, said.err
    row = await entity(opened, JOB, key_of(said.out))
    assert (row["kind"], row["queue"], row["priority"], row["key"]) == ("mail", "post", 5, "order-17")
    assert (row["state"], row["max_attempts"], json.loads(row["payload"])) == ("queued", 4, {"to": "ann"})
    (event,) = await log(opened, entity="job")
    assert (event.trigger, event.type, event.actor) == ("enqueue", "job_enqueued", "sql:keptwork")


async def test_every_argument_reaches_the_job(opened: Store, url: str) -> None:
    async with plain(url) as connection:
        rest = "max_attempts => 2, on_exhausted => 'fail', correlation_id => 'c', trace_id => 't'"
        id = await enqueue(connection, f"'a', run_in => '5 minutes', {rest}")
        later = await enqueue(connection, "'a', run_at => '2090-01-01 00:00:00.5Z', run_in => '1 s'")
        past = await enqueue(connection, "'a', run_at => '2001-01-01'")
    row = await entity(opened, JOB, key_of(id))
    assert row["run_at"] - row["created_at"] == 300_000_000
    assert (row["max_attempts"], row["on_exhausted"]) == (2, "fail")
    assert (row["correlation_id"], row["trace_id"]) == ("c", "t")
    assert (await entity(opened, JOB, key_of(later)))["run_at"] == 3_786_912_001_500_000
    row = await entity(opened, JOB, key_of(past))
    assert row["run_at"] == row["created_at"]


@pytest.mark.parametrize("commits", [True, False])
async def test_it_is_there_if_the_callers_transaction_commits_and_never_was_if_not(
    opened: Store, url: str, commits: bool
) -> None:
    async with plain(url) as connection:
        await connection.execute("CREATE TABLE orders (id int)")
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO orders VALUES (1)")
        key = key_of(await enqueue(connection, "'a'"))
        assert await opened.get(JOB, key, None) is None
        await (transaction.commit() if commits else transaction.rollback())
        assert await connection.fetchval("SELECT count(*) FROM orders") == int(commits)
    assert (await opened.get(JOB, key, None) is not None) == commits
    assert len(await log(opened)) == int(commits)


async def test_the_same_key_returns_the_first_job_also_to_a_crowd(opened: Store, url: str) -> None:
    async def one(number: int) -> str:
        async with plain(url) as connection:
            return await enqueue(connection, "'a', jsonb_build_object('n', $1::int), key => 'k'", number)

    found = await asyncio.gather(*[one(number) for number in range(12)])
    assert len(set(found)) == 1
    assert len(await log(opened)) == 1
    async with opened.transaction() as transaction:
        assert (await transaction.counts(JOB)) == (1, 0)


async def test_one_that_waited_for_a_key_whose_owner_was_undone_takes_it(opened: Store, url: str) -> None:
    async with plain(url) as first, plain(url) as second:
        transaction = first.transaction()
        await transaction.start()
        undone = await enqueue(first, "'a', key => 'k'")
        waiting = asyncio.create_task(enqueue(second, "'b', key => 'k'"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await transaction.rollback()
        made = await waiting
    assert made != undone
    assert (await entity(opened, JOB, key_of(made)))["kind"] == "b"


async def test_a_session_that_logs_by_itself_gets_one_event_too_and_goes_on_logging_by_itself(
    opened: Store, url: str
) -> None:
    async with plain(url, server_settings=SESSION_SETTINGS) as connection, connection.transaction():
        await enqueue(connection, "'a'")
        await enqueue(connection, "'b', key => 'k'")
        await enqueue(connection, "'c', key => 'k'")
        assert await connection.fetchval("SELECT current_setting('keptwork.logs')") == "self"
    assert len(await log(opened)) == 2


async def test_the_commit_rings_for_idle_workers(url: str) -> None:
    started = asyncio.Event()
    async with Keptwork(url) as app:

        @app.job()
        async def mail(ctx: Context, to: str) -> None:
            started.set()

        work = asyncio.create_task(app.work())
        async with plain(url) as connection:
            rung = asyncio.Event()
            await connection.add_listener("keptwork_jobs", lambda *_: rung.set())
            await enqueue(connection, "'mail', '{\"to\": \"bob\"}', run_in => '1 hour'")
            await connection.fetch("SELECT 1")
            assert not rung.is_set()
            await enqueue(connection, "'mail', '{\"to\": \"ann\"}'")
            await connection.fetch("SELECT 1")
            assert rung.is_set()
        async with asyncio.timeout(60):
            await started.wait()
        app.stop()
        await work


@pytest.mark.parametrize("path", ["", "pg_catalog", "elsewhere, public"])
async def test_it_finds_its_tables_whatever_the_search_path(opened: Store, url: str, path: str) -> None:
    async with plain(url) as connection:
        await connection.execute("CREATE SCHEMA elsewhere; CREATE TABLE elsewhere.jobs (id int)")
        await connection.execute("SELECT set_config('search_path', $1, false)", path)
        id = await connection.fetchval("SELECT public.keptwork_enqueue('a')")
    assert (await entity(opened, JOB, key_of(id)))["state"] == "queued"


async def test_the_sql_of_the_documentation_runs_and_a_trigger_enqueues_a_job_for_each_row(
    opened: Store, url: str
) -> None:
    calls, trigger = blocks("docs/how-to/other-doors.md", "sql")
    async with plain(url) as connection:
        await connection.execute("CREATE TABLE orders (id int PRIMARY KEY, email text)")
        await connection.execute(calls)
        await connection.execute(trigger)
        await connection.execute("INSERT INTO orders SELECT n, 'ann' FROM generate_series(1, 3) AS n")
        with pytest.raises(asyncpg.UniqueViolationError):
            await connection.execute("INSERT INTO orders VALUES (4, 'bob'), (1, 'eve')")
    keys = {row["key"] for row in await opened.jobs()}
    assert keys == {None, "order-18", "order-1", "order-2", "order-3"}


# --- refusals


REFUSED = [
    ("NULL", "a job needs a kind"),
    ("' '", "is no kind; it must be printable text"),
    (r"E'a\nb'", "is no kind"),
    (f"repeat('k', {LONGEST_NAME + 1})", f"a kind of {LONGEST_NAME + 1} characters is over the limit"),
    ("'a', queue => ''", "is no queue"),
    ("'a', queue => NULL", "a job needs a queue"),
    (f"'a', queue => repeat('q', {LONGEST_NAME + 1})", "a queue of"),
    (f"'a', key => repeat('é', {LONGEST_KEY + 1})", "a key of"),
    (r"'a', correlation_id => E'\t'", "is no correlation"),
    ("'a', trace_id => ''", "is no trace"),
    ("'a', '[1]'", "must be a JSON object"),
    ("'a', NULL", "must be a JSON object"),
    (f"'a', jsonb_build_object('x', repeat('y', {LARGEST_PAYLOAD}))", "over the limit of 1 MiB"),
    (f"'a', priority => {-LARGEST_INT - 1}", "is no priority"),
    ("'a', priority => NULL", "is no priority"),
    ("'a', max_attempts => 0", "max_attempts is 0; it must be at least 1"),
    ("'a', on_exhausted => 'shrug'", "say 'dead_letter' or 'fail'"),
    ("'a', run_in => '-1 second'", "is no delay"),
    ("'a', run_in => '101 years'", "is no delay"),
    ("'a', run_at => 'infinity'", "run_at is no point in time"),
    ("'a', run_at => '3000-01-01'", "later than in a hundred years"),
    ("'a', tenant => 'nobody'", "no tenant 'nobody'"),
]


async def test_what_a_job_may_not_be_given_is_refused_with_the_state_of_a_bad_argument(opened: Store, url: str) -> None:
    async with plain(url) as connection:
        for arguments, words in REFUSED:
            with pytest.raises(asyncpg.InvalidParameterValueError, match=f"^keptwork: .*{words}") as refusal:
                await enqueue(connection, arguments)
            assert refusal.value.sqlstate == "22023"
        for arguments in ("'a', priority => 2147483648", "'a', '{'", r"""'a', '{"x": "\u0000"}'"""):
            with pytest.raises(asyncpg.PostgresError):
                await enqueue(connection, arguments)
        for arguments in (
            f"repeat('k', {LONGEST_NAME}), key => repeat('é', {LONGEST_KEY}), priority => {-LARGEST_INT}",
            f"'a', jsonb_build_object('x', repeat('y', {LARGEST_PAYLOAD - 9})), priority => {LARGEST_INT}",
        ):
            await enqueue(connection, arguments)
    assert len(await log(opened)) == 2


async def as_tenant(connection: asyncpg.Connection, tenant: str, arguments: str) -> str:
    async with connection.transaction():
        await connection.execute("SET LOCAL ROLE keptwork_app")
        await connection.execute("SELECT set_config('keptwork.tenant', $1, true)", tenant)
        return await enqueue(connection, arguments)


async def test_the_role_of_the_api_enqueues_for_its_own_tenant_only(opened: Store, url: str) -> None:
    theirs = await opened.add_tenant("other")
    async with plain(url) as connection:
        for tenant, named, mine in (("1", "NULL", 1), ("2", "NULL", theirs), ("2", "'other'", theirs)):
            id = await as_tenant(connection, tenant, f"'a', tenant => {named}, key => 'k{tenant}'")
            assert (await entity(opened, JOB, key_of(id)))["tenant_id"] == mine
        for tenant, named in (("2", "'default'"), ("", "NULL"), ("", "'other'"), ("7", "NULL")):
            with pytest.raises(asyncpg.InvalidParameterValueError, match="keptwork: no tenant"):
                await as_tenant(connection, tenant, f"'a', tenant => {named}")
    assert len(await log(opened)) == 2


async def test_a_role_that_was_granted_nothing_may_not_call_it(url: str, postgres_server: PostgresServer) -> None:
    postgres_server.superuser_sql("DROP ROLE IF EXISTS stranger; CREATE ROLE stranger LOGIN PASSWORD 'x'")
    name = url.rpartition("/")[2]
    async with plain(postgres_server.url(name, "stranger", "x")) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await enqueue(connection, "'a'")


async def test_a_role_of_an_application_enqueues_for_the_tenant_it_was_given(
    opened: Store, url: str, postgres_server: PostgresServer
) -> None:
    """As the documentation has it."""
    postgres_server.superuser_sql("DROP ROLE IF EXISTS shopkeeper; CREATE ROLE shopkeeper LOGIN PASSWORD 'x'")
    postgres_server.superuser_sql("GRANT keptwork_app TO shopkeeper; ALTER ROLE shopkeeper SET keptwork.tenant = '1'")
    async with plain(postgres_server.url(url.rpartition("/")[2], "shopkeeper", "x")) as connection:
        id = await enqueue(connection, "'a', key => 'k'")
        assert await enqueue(connection, "'a', key => 'k'") == id
    (event,) = await log(opened, entity_id=key_of(id))
    assert event.actor == "sql:shopkeeper"


async def test_a_later_snapshot_that_meets_a_taken_key_is_told_to_try_again(opened: Store, url: str) -> None:
    """PostgreSQL's own answer in a transaction that must not see what was committed since it began."""
    async with plain(url) as first, plain(url) as second:
        async with first.transaction(isolation="repeatable_read"):
            await first.fetchval("SELECT count(*) FROM jobs")
            await enqueue(second, "'a', key => 'k'")
            with pytest.raises(asyncpg.SerializationError):
                async with first.transaction():
                    await enqueue(first, "'b', key => 'k'")
        assert await enqueue(first, "'b', key => 'k'") == await enqueue(second, "'a', key => 'k'")


# --- ids


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(keys=st.lists(st.one_of(st.integers(1, (1 << 63) - 1), st.integers(1, 1 << 24)), min_size=1, max_size=50))
def test_ids_are_written_to_the_letter_as_in_python(migrated_url_loop: Any, keys: list[int]) -> None:
    loop, connection = migrated_url_loop
    rows = loop.run(connection.fetch("SELECT keptwork_id(k), keptwork_id(k, 'w') FROM unnest($1::bigint[]) AS k", keys))
    assert [tuple(row) for row in rows] == [(ids.public("job", key), ids.public("w", key)) for key in keys]


@pytest.fixture(scope="module")
def migrated_url_loop(postgres_server: PostgresServer, migrated_template: str) -> Any:
    url = postgres_server.create_database(template=migrated_template)
    with asyncio.Runner() as loop:
        connection = loop.run(asyncpg.connect(url))
        yield loop, connection
        loop.run(connection.close())
    postgres_server.drop_database(url)
