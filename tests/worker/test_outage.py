"""What a worker says and does when its database fails: it waits for what passes, and ends at once for what does not."""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from keptwork import Keptwork
from keptwork.context import Context
from keptwork.core.lifecycles import WORKER
from keptwork.errors import DiskFull, NotADatabase, NotPermitted, NotWritable, SchemaDamaged, Unreachable
from keptwork.maintenance.periodic import Outage
from keptwork.store.sqlite.store import SqliteStore
from tests.acceptance.observer import type_in
from tests.cli.test_work import PROGRAM, command
from tests.support import postgres_server
from tests.support.command import environment
from tests.support.postgres_server import PostgresServer
from tests.worker.scene import eventually, only_worker, reaches, working

pytestmark = pytest.mark.acceptance

OUT = re.compile(r"database out of reach since [-0-9]+ [:0-9]+\+00:00: (.*)")
BACK = re.compile(r"database is back after [0-9]+\.[0-9] s")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "keptwork"]


def test_an_outage_is_one_line_at_its_beginning_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    outage, gone = Outage(), Unreachable(url="postgresql://db/work", detail="connection refused")
    outage.over("claim")
    for duty in ("claim", "write", "claim"):
        outage.endure(duty, gone)
    outage.over("claim")
    assert len(said(caplog)) == 1
    outage.over("write")
    outage.over("write")
    out, back = said(caplog)
    found = OUT.fullmatch(out)
    assert found
    assert found[1] == str(gone)
    assert BACK.fullmatch(back)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_what_no_repetition_can_heal_is_raised_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage()
    with pytest.raises(NotADatabase):
        outage.endure("claim", NotADatabase(path="work.db"))
    assert said(caplog) == []
    outage.endure("claim", DiskFull(path="work.db"))
    assert len(said(caplog)) == 1


@asynccontextmanager
async def full_disk(app: Keptwork) -> AsyncIterator[None]:
    """The file is kept from growing, which SQLite reports as a full disk. Asked for on the thread that writes: two
    threads at once in one connection damage it."""
    store = await app.open()
    assert isinstance(store, SqliteStore)
    await store._write(lambda session: session._db.pragma("max_page_count", session._db.pragma("page_count")))
    yield
    await store._write(lambda session: session._db.pragma("max_page_count", 1 << 30))


async def test_a_worker_on_a_full_disk_says_so_once_and_goes_on_when_there_is_room(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Keptwork(sqlite_url) as app:
        go = asyncio.Event()

        @app.job()
        async def long_answer(ctx: Context) -> str:
            await go.wait()
            return "x" * 100_000

        job = await long_answer.enqueue()
        async with working(app):
            await reaches(app, job, "running")
            async with full_disk(app):
                go.set()
                await eventually(lambda: _so(bool(said(caplog))))
                await asyncio.sleep(0.5)  # for several attempts
                assert len(said(caplog)) == 1
            await reaches(app, job, "succeeded")
        out, back = said(caplog)
        assert "is full; what was committed is safe" in out
        assert BACK.fullmatch(back)


async def test_on_a_full_disk_everyone_whose_write_was_in_the_group_hears_that_it_is_full(sqlite_url: str) -> None:
    """SQLite undoes the whole transaction then; they used to be told of a savepoint that is gone."""
    async with Keptwork(sqlite_url) as app:
        store = await app.open()
        large = {"payload": '"' + "x" * 1_000_000 + '"', "ttl_us": 1}
        async with full_disk(app):
            kinds = [f"kind {number}" for number in range(8)]
            writes = (store.record_telemetry(WORKER, 1, kind, **large) for kind in kinds)  # type: ignore[arg-type]
            said = await asyncio.gather(*writes, return_exceptions=True)
            assert {type(error) for error in said} == {DiskFull}
            with pytest.raises(DiskFull):
                async with asyncio.timeout(10), store.transaction() as transaction:
                    await transaction.record_telemetry(WORKER, 1, "kind", **large)  # type: ignore[arg-type]
        await store.record_telemetry(WORKER, 1, "kind", **large)  # type: ignore[arg-type]


async def test_a_claim_that_failed_is_no_sign_that_nothing_is_due(sqlite_url: str) -> None:
    async with Keptwork(sqlite_url) as app:

        @app.job()
        async def waits_in_the_queue(ctx: Context) -> None: ...

        await app.enqueue_many(waits_in_the_queue, [{}] * 100)
        async with full_disk(app):
            work = asyncio.create_task(app.work(until_idle=True))
            await asyncio.wait({work}, timeout=0.5)
            assert not work.done()
        assert await asyncio.wait_for(work, 10) == 100


async def test_keptwork_work_says_on_stderr_when_the_server_goes_and_when_it_is_back(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    errors = tmp_path / "stderr"
    with postgres_server.start() as server:
        url = server.create_database()
        async with Keptwork(url) as app:
            greet = app.job(name="greet")(lambda ctx, name: None)
            job = await greet.enqueue(name="Ann")
            work = started(tmp_path, errors, url)
            await reaches(app, job, "succeeded")
            await asyncio.to_thread(server.kill9)
            await eventually(lambda: _so("out of reach" in errors.read_text()))
            await asyncio.to_thread(server.restart)
            await eventually(lambda: _so("is back" in errors.read_text()))
        work.send_signal(signal.SIGTERM)
        code = await asyncio.to_thread(work.wait, 20)
    _, out, back = errors.read_text().splitlines()
    assert code == 0
    assert OUT.fullmatch(out.partition(" WARNING ")[2])
    assert BACK.fullmatch(back.partition(" WARNING ")[2])


def started(folder: Path, errors: Path, url: str) -> subprocess.Popen[bytes]:
    with errors.open("wb") as stderr:
        return subprocess.Popen(
            command("shop:app", "--db", url), cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=stderr
        )


async def test_a_worker_whose_tables_are_gone_ends_with_that_error(database_url: str) -> None:
    async with Keptwork(database_url) as app, ending(app) as work:
        await type_in(database_url, "ALTER TABLE jobs RENAME TO elsewhere")
    with pytest.raises(SchemaDamaged, match="restore your last backup"):
        work.result()


async def test_a_worker_that_may_not_write_any_more_ends_with_that_error(
    database_url: str, postgres_server: PostgresServer
) -> None:
    async with Keptwork(database_url) as app, ending(app) as work:
        store = await app.open()
        if isinstance(store, SqliteStore):
            await store._write(lambda session: session._db.pragma("query_only", True))
        else:
            database = urlsplit(database_url).path.lstrip("/")
            await asyncio.to_thread(postgres_server.superuser_sql, "ALTER TABLE jobs OWNER TO postgres", database)
            await asyncio.to_thread(
                postgres_server.superuser_sql, "REVOKE ALL ON jobs FROM keptwork, keptwork_app", database
            )
    with pytest.raises((NotWritable, NotPermitted)):
        work.result()


@asynccontextmanager
async def ending(app: Keptwork) -> AsyncIterator[asyncio.Task[int]]:
    """A worker that has begun, and must end by itself after what is done to it."""
    task = asyncio.create_task(app.work())
    await only_worker(app)
    yield task
    await asyncio.wait({task}, timeout=10)
    assert task.done()


async def _so(it_is: bool) -> bool:
    return it_is
