"""How many records the store writes to the server's log only to have its commits waited for, counted in that log."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from keptwork import Context, Keptwork
from keptwork.core.lifecycles import JOB, decide, insist
from keptwork.maintenance.periodic import Outage
from keptwork.maintenance.runner import Housekeeping
from keptwork.store import NewJob, Store, open_store
from tests.conformance.stage import worker
from tests.http.flow_stage import GRAPH, SIGNED, trip
from tests.support.postgres_binaries import environment
from tests.support.postgres_server import PostgresServer

HOUR = 3_600_000_000


class Records(list[str]):
    """The records that were written inside a block; complete when it has ended."""


@asynccontextmanager
async def records(server: PostgresServer, url: str) -> AsyncIterator[Records]:
    """Read from the log of the server what was written to it inside the block."""
    hand, found = await asyncpg.connect(url), Records()
    start = await hand.fetchval("SELECT pg_current_wal_insert_lsn()::text")
    yield found
    await hand.execute("CREATE TEMP TABLE flushed AS SELECT 1 AS one")
    end = await hand.fetchval("SELECT pg_current_wal_flush_lsn()::text")
    await hand.close()
    found += messages(server, start, end)


def messages(server: PostgresServer, start: str, end: str) -> list[str]:
    """Return the store's messages between two positions of the server's log."""
    argv = [str(server.bin("pg_waldump")), "-p", str(server.folder / "data" / "pg_wal"), "-s", start, "-e", end]
    done = subprocess.run(
        [*argv, "-r", "LogicalMessage"], capture_output=True, text=True, env=environment(), check=True
    )
    return [line for line in done.stdout.splitlines() if "keptwork" in line]


@pytest.fixture
async def store(postgres_copy: str) -> AsyncIterator[Store]:
    opened = await open_store(postgres_copy)
    yield opened
    await opened.close()


async def test_work_that_writes_adds_no_record(
    store: Store, postgres_server: PostgresServer, postgres_copy: str
) -> None:
    async with records(postgres_server, postgres_copy) as found:
        await store.enqueue([NewJob("k", key=f"{number}") for number in range(100)])
        await store.enqueue([NewJob("k")])
        owner = await worker(store)
        jobs = await store.claim(owner, ["default"], 101, HOUR, claim_id=1, start=True)
        now = await store.now()
        ends = [insist(decide(JOB, job, "succeed", token=job.token, now=now, values={"result": "1"})) for job in jobs]
        assert await store.apply(ends) == []
    assert found == []


async def test_repeated_enqueue_adds_one_record(
    store: Store, postgres_server: PostgresServer, postgres_copy: str
) -> None:
    await store.enqueue([NewJob("k", key="order-17")])
    async with records(postgres_server, postgres_copy) as found:
        await store.enqueue([NewJob("k", key="order-17")] * 3)
    assert len(found) == 1


async def test_block_adds_one_record_for_all_that_it_found(
    store: Store, postgres_server: PostgresServer, postgres_copy: str
) -> None:
    await store.enqueue([NewJob("k", key="order-17")])
    async with records(postgres_server, postgres_copy) as found, store.acknowledging():
        await store.enqueue([NewJob("k", key="order-17")])
        await store.enqueue([NewJob("k")])
        await store.enqueue([NewJob("k", key="order-17")])
    assert len(found) == 1


async def test_block_that_only_reads_a_snapshot_adds_a_record_and_one_that_wrote_before_adds_none(
    store: Store, postgres_server: PostgresServer, postgres_copy: str
) -> None:
    async with records(postgres_server, postgres_copy) as read, store.acknowledging(), store.snapshot() as snapshot:
        await snapshot.now()
    async with records(postgres_server, postgres_copy) as written, store.acknowledging():
        await store.enqueue([NewJob("k")])
        async with store.snapshot() as snapshot:
            await snapshot.now()
    assert (len(read), len(written)) == (1, 0)


async def test_task_that_outlives_the_block_it_was_started_in_adds_its_own_record(
    store: Store, postgres_server: PostgresServer, postgres_copy: str
) -> None:
    await store.enqueue([NewJob("k", key="order-17")])
    is_over = asyncio.Event()

    async def repeat() -> None:
        await is_over.wait()
        await store.enqueue([NewJob("k", key="order-17")])

    async with records(postgres_server, postgres_copy) as found:
        async with store.acknowledging():
            task = asyncio.create_task(repeat())
            await asyncio.sleep(0)
        is_over.set()
        await task
    assert len(found) == 1


async def test_idle_worker_commits_nothing(postgres_server: PostgresServer, postgres_copy: str) -> None:
    """Beside its heartbeat, however much there is that waits."""
    app = Keptwork(postgres_copy)

    @app.job(limit=1)
    async def limited(ctx: Context) -> None: ...

    @app.job(breaker="tool:aider")
    async def held(ctx: Context) -> None: ...

    app.schedule(limited, every="1h")
    async with app:
        store = await app.open()
        await trip(store, 1, "tool:aider")
        await held.enqueue()
        await app.start_flow({**SIGNED, "kind": "run"})
        await app.start_flow({**GRAPH, "kind": "workstream"})
        await app.work(until_idle=True)
        async with records(postgres_server, postgres_copy) as found:
            for _ in range(3):
                await app.work(until_idle=True)
                await Housekeeping(store, lambda: None, Outage()).look()
    assert found == []
