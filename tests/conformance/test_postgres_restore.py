"""A dump restored into another PostgreSQL server: its log goes on where it ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest

from keptwork.audit.seals import seal
from keptwork.audit.verify import verify
from keptwork.core.lifecycles import JOB
from keptwork.store import Event, Store, open_store
from tests.conformance.stage import claimed, entity, log, moved, queued, settled, worker
from tests.conformance.test_follow import following, until
from tests.support import postgres_server as postgres
from tests.support.postgres_binaries import environment

pytestmark = pytest.mark.acceptance


@pytest.fixture
def fresh_server() -> Iterator[postgres.PostgresServer]:
    """A server whose transactions have only begun to count, with the roles of the old one."""
    with postgres.start(settings={"shared_buffers": "16MB"}) as server:
        server.superuser_sql("CREATE ROLE keptwork_app NOLOGIN")
        server.superuser_sql("GRANT keptwork_app TO keptwork")
        yield server


def dump_as_owner(server: postgres.PostgresServer, url: str) -> str:
    """By the owner of the tables, who needs no superuser for a backup: its policy shows it every row."""
    argv = [str(server.bin("pg_dump")), "--enable-row-security", "-d", url]
    return subprocess.run(argv, check=True, capture_output=True, text=True, env=environment()).stdout


def restore(server: postgres.PostgresServer, dump: str) -> str:
    url = server.create_database()
    target = ["-h", str(server.socket_folder), "-p", str(server.port), "-U", "postgres"]
    argv = [str(server.bin("psql")), "-Xq", "-v", "ON_ERROR_STOP=1", *target, "-d", urlsplit(url).path.lstrip("/")]
    subprocess.run(argv, check=True, input=dump, capture_output=True, text=True, env=environment())
    return url


def transaction_number(server: postgres.PostgresServer) -> int:
    return int(server.superuser_sql("SELECT pg_snapshot_xmax(pg_current_snapshot())"))


def pass_transactions(server: postgres.PostgresServer, number: int) -> None:
    loop = f"FOR i IN 1..{number} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP"
    server.superuser_sql(f"DO $$ BEGIN {loop}; END $$")


async def work(store: Store) -> int:
    (job,) = await claimed(store, await worker(store))
    await moved(store, JOB, job.id, "start", by="holder")
    return job.id


def position(event: Event) -> tuple[int, ...]:
    return tuple(map(int, event.cursor.split("-")))


async def test_a_restored_log_goes_on_where_it_ended(
    postgres_server: postgres.PostgresServer, fresh_server: postgres.PostgresServer, postgres_copy: str
) -> None:
    store = await open_store(postgres_copy)
    # The old server is far ahead of the new one, or the restored log would be in order by chance.
    behind = transaction_number(fresh_server) - transaction_number(postgres_server)
    pass_transactions(postgres_server, max(0, behind) + 1000)
    running = await work(store)
    await settled(store)
    old, row = await store.events(limit=10_000), await entity(store, JOB, running)
    assert await seal(store) == len(old)
    await store.close()

    url = restore(fresh_server, dump_as_owner(postgres_server, postgres_copy))
    restored = await open_store(url)
    assert transaction_number(fresh_server) < position(old[-1])[0]
    assert await entity(restored, JOB, running) == row
    assert await log(restored) == old
    async with following(restored, after=old[-1].cursor) as news, following(restored) as everything:
        await moved(restored, JOB, running, "succeed", by="holder")
        another = await work(restored)
        await until(news, 5)
        await until(everything, len(old) + 5)
    assert (news[0].entity_id, news[0].trigger) == (running, "succeed")
    assert [e.trigger for e in news if e.entity_id == another] == ["enqueue", "claim", "start"]
    assert everything == old + news
    assert [position(e) for e in everything] == sorted({position(e) for e in everything})
    assert everything == await log(restored)
    assert await seal(restored) > 0
    verdict = await verify(restored)
    assert (verdict.problems, verdict.sealed.seals) == ([], 2)
    await restored.close()

    again = await open_store(url)  # opening it once more must not move the log a second time
    await queued(again)
    assert (await log(again))[:-1] == everything
    await again.close()


async def test_a_database_that_stays_where_it_is_is_not_touched(postgres_copy: str) -> None:
    functions = "SELECT oid, xmin, prosrc FROM pg_proc WHERE proname LIKE 'keptwork_tx%' ORDER BY oid"
    store = await open_store(postgres_copy)
    await work(store)
    await store.close()
    hand = await asyncpg.connect(postgres_copy)
    before = await hand.fetch(functions)
    await (await open_store(postgres_copy)).close()
    assert await hand.fetch(functions) == before
    await hand.close()
