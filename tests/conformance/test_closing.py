"""Close: everything is given back, and what was acknowledged is on disk."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import asyncpg
import pytest

from keptwork.core.lifecycles import JOB
from keptwork.store import open_store
from keptwork.store.contract.store import Store as Promises
from keptwork.store.contract.store import Writer
from tests.conformance.promises import keeps
from tests.conformance.stage import claimed, entity, eventually, log, queued, worker

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks at open files in /proc")


async def busy(url: str) -> None:
    """Opens a store, uses all of its ways in, and closes it."""
    store = await open_store(url)
    await claimed(store, await worker(store), 3)
    await asyncio.gather(*[store.counts(JOB) for _ in range(8)])
    async with store.snapshot() as snapshot, store.transaction() as transaction:
        await snapshot.counts(JOB)
        await queued(transaction)
    await store.close()


@keeps(
    Promises.close,
    "Release all resources",
    "Acknowledged writes are on disk",
)
@keeps(Writer, "Each takes full effect or none, and returns only when its changes are on disk")
async def test_what_was_acknowledged_is_there_when_the_store_is_opened_again(database_url: str) -> None:
    store = await open_store(database_url)
    (job,) = await claimed(store, await worker(store))
    row, events = await entity(store, JOB, job.id), await log(store)
    await store.close()
    again = await open_store(database_url)
    assert (await entity(again, JOB, job.id), await log(again)) == (row, events)
    await again.close()


@keeps(Promises.abandon, "Close the store of a closed event loop without awaiting anything")
def test_store_of_a_closed_event_loop_leaves_no_thread_and_no_session(database_url: str) -> None:
    before, loop = our_threads(), asyncio.new_event_loop()
    store = loop.run_until_complete(open_store(database_url))
    loop.run_until_complete(store.counts(JOB))
    loop.close()
    store.abandon()
    store.abandon()
    assert our_threads() == before
    if database_url.startswith("postgres"):
        asyncio.run(eventually(lambda: nobody_else_on(database_url)))


async def nobody_else_on(url: str) -> bool:
    connection = await asyncpg.connect(url)
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    count = await connection.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {others}")
    await connection.close()
    return bool(count == 0)


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("keptwork")}


@keeps(Promises.close, "Release all resources")
async def test_no_thread_is_left(database_url: str) -> None:
    before = our_threads()
    store = await open_store(database_url)
    await store.counts(JOB)
    if database_url.startswith("sqlite"):
        assert our_threads() - before  # or this test could not fail
    await store.close()
    await busy(database_url)
    assert our_threads() == before


@needs_proc
async def test_no_file_is_left_open_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    def open_files() -> list[str]:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        paths = [os.readlink(link) for link in links if link.is_symlink()]
        return [path for path in paths if path.startswith(str(tmp_path))]

    store = await open_store(sqlite_url)
    assert open_files()
    await store.close()
    await busy(sqlite_url)
    assert open_files() == []


@keeps(Promises.close, "Release all resources")
async def test_no_connection_is_left_on_postgres(postgres_copy: str) -> None:
    watcher = await asyncpg.connect(postgres_copy)

    async def nobody_connected() -> bool:
        others = "datname = current_database() AND pid <> pg_backend_pid()"
        return not await watcher.fetchval(f"SELECT count(*) FROM pg_stat_activity WHERE {others}")

    store = await open_store(postgres_copy)
    await store.now()
    assert not await nobody_connected()
    await store.close()
    await busy(postgres_copy)
    await eventually(nobody_connected)  # a backend ends a moment after its client has said goodbye
    await watcher.close()
