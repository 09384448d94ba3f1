"""Migrating a database that is in use: nobody waits for long, and whoever is waited for is named."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import apsw
import asyncpg
import pytest

from keptwork.store import NewJob, open_store
from keptwork.store.dialect import POSTGRES
from keptwork.store.migrations import LOCK_KEY, Migration, guards, migrations, newest
from keptwork.store.postgres import lock_retry, migrate
from keptwork.store.postgres.connections_server import connect
from keptwork.store.sqlite import file_migrate
from keptwork.store.sqlite.file_migrate import Execute
from keptwork.store.upgrade import restore_guards, upgrade
from keptwork.store.url import database_url as parsed
from tests.store.conftest import hand_on
from tests.store.schemas import history
from tests.store.test_migrate_versions import leave_behind
from tests.support import command, postgres_server

pytestmark = pytest.mark.acceptance

PATIENCE = 60.0
LONGEST_WAIT = 1.0
WAITS = """SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 FROM pg_locks
WHERE NOT granted AND pid <> $1"""


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next release: it changes the tables that every program writes to, and their guards."""
    changes = ("ALTER TABLE jobs ADD COLUMN later integer", "ALTER TABLE events ADD COLUMN later integer")
    migration = Migration(newest() + 1, "later", (*changes, *guards(POSTGRES)), replaces_guards=True)
    monkeypatch.setattr(migrate, "migrations", lambda dialect: (*migrations(dialect), migration))


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


class Scene:
    """A migration, a reader that holds a snapshot, and a program that works meanwhile."""

    def __init__(self, url: str, migrator: asyncpg.Connection, reader: asyncpg.Connection) -> None:
        self._url, self.migrator, self.reader = url, migrator, reader
        self.told: list[str] = []
        self.longest = 0.0
        self.enqueued = 0

    async def work(self) -> None:
        store = await open_store(self._url)
        try:
            while True:
                await store.enqueue([NewJob("kind")])
                self.enqueued += 1
                await asyncio.sleep(0.005)
        finally:
            await store.close()

    async def measure(self) -> None:
        """Look for the longest time that anybody but the migration has waited for a lock."""
        watch = await asyncpg.connect(self._url)
        try:
            while True:
                found = await watch.fetchval(WAITS, self.migrator.get_server_pid())
                self.longest = max(self.longest, found)
                await asyncio.sleep(0.01)
        finally:
            watch.terminate()


@contextlib.asynccontextmanager
async def scene(url: str) -> AsyncIterator[Scene]:
    migrator, reader = await connect(parsed(url)), await asyncpg.connect(url)
    made = Scene(url, migrator, reader)
    beside = [asyncio.create_task(part()) for part in (made.work, made.measure)]
    try:
        await until(lambda: made.enqueued)
        yield made
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await migrator.close()
        await reader.close()


async def migrated_beside_a_reader(on: Scene, seconds: float) -> int:
    """Returns how many jobs were enqueued while the migration waited for the reader."""
    async with on.reader.transaction(isolation="repeatable_read"):
        await on.reader.fetch("SELECT count(*) FROM jobs, events")
        before = on.enqueued
        migrating = asyncio.create_task(migrate.migrate_database(on.migrator, tell=on.told.append))
        await asyncio.sleep(seconds)
        assert not migrating.done()
        meanwhile = on.enqueued - before
    async with asyncio.timeout(PATIENCE):
        await migrating
    return meanwhile


async def test_programs_work_on_while_a_migration_waits_for_a_reader_and_the_reader_is_named(
    postgres_copy: str, later: None
) -> None:
    async with scene(postgres_copy) as on:
        meanwhile = await migrated_beside_a_reader(on, 1.5)
        reader, after = on.reader.get_server_pid(), on.enqueued
        await until(lambda: on.enqueued > after)
        assert await migrate.applied(on.migrator) == newest() + 1
        print(f"\n{meanwhile} jobs enqueued meanwhile; longest wait for a lock {on.longest:.2f} s")
    assert meanwhile > 0
    assert on.longest < LONGEST_WAIT
    # The session that enqueues can be in the way for a moment, too.
    (line,) = [told for told in on.told if f"session {reader} " in told]
    assert line.startswith(f"waiting for session {reader} (user keptwork, client backend, idle in transaction for ")
    assert line.endswith(f"which holds table events; to end it, run: SELECT pg_terminate_backend({reader})")


async def test_a_migration_that_waits_without_a_limit_is_caught_by_the_same_measure(
    postgres_copy: str, later: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_retry, "LOCK_SECONDS", PATIENCE)
    async with scene(postgres_copy) as on:
        await migrated_beside_a_reader(on, LONGEST_WAIT + 0.5)
        assert on.longest >= LONGEST_WAIT


async def test_a_migration_gives_way_to_a_transaction_that_waits_for_it(postgres_copy: str, later: None) -> None:
    """It has one table and wants the other, and the transaction the other way around."""
    migrator, writer = await connect(parsed(postgres_copy)), await asyncpg.connect(postgres_copy)
    async with asyncio.timeout(PATIENCE):
        async with writer.transaction():
            await writer.execute("LOCK TABLE events IN ROW EXCLUSIVE MODE")
            migrating = asyncio.create_task(migrate.migrate_database(migrator, tell=lambda line: None))
            while not await writer.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await writer.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")
        await migrating
    assert await migrate.applied(migrator) == newest() + 1
    await migrator.close()
    await writer.close()


@pytest.mark.chaos
async def test_an_automatic_vacuum_gives_way_to_a_migration_without_anybody_waiting_for_it(later: None) -> None:
    """It is slowed down so much that it would go on for minutes."""
    often = {"autovacuum": "on", "autovacuum_naptime": "1s", "autovacuum_vacuum_threshold": "1"}
    slow = "autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_cost_limit = 1"
    with postgres_server.start(settings=often) as server:
        url = server.create_database()
        assert command.run("migrate", "--db", url).returncode == 0  # a process of this release
        store = await open_store(url)
        await store.enqueue([NewJob("kind")] * 10_000)
        await store.close()
        async with scene(url) as on:
            await on.reader.execute(f"ALTER TABLE jobs SET ({slow})")
            await on.reader.execute("UPDATE jobs SET priority = 1")
            locks = "SELECT count(*) FROM pg_locks WHERE relation = 'jobs'::regclass"
            vacuums = f"{locks} AND mode = 'ShareUpdateExclusiveLock' AND granted"
            async with asyncio.timeout(PATIENCE):
                while not await on.reader.fetchval(vacuums):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                began = time.monotonic()
                await migrate.migrate_database(on.migrator, tell=on.told.append)
                took = time.monotonic() - began
        print(f"\nmigrated beside an automatic vacuum in {took:.1f} s; longest wait for a lock {on.longest:.2f} s")
    assert took > 0.5
    assert on.longest < LONGEST_WAIT


async def test_restoring_guards_waits_as_shortly_as_a_migration(postgres_copy: str) -> None:
    async with scene(postgres_copy) as on:
        await on.migrator.execute("DROP TRIGGER keptwork_job_moves ON jobs")
        async with on.reader.transaction():
            await on.reader.execute("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")  # as after a write
            restoring = asyncio.create_task(restore_guards(parsed(postgres_copy), on.told.append))
            await until(lambda: on.told)
            before = on.enqueued
            await until(lambda: on.enqueued > before)
        assert await restoring == ["keptwork_job_moves"]


async def test_a_second_migration_names_the_session_that_migrates_already(postgres_copy: str) -> None:
    first, told = await asyncpg.connect(postgres_copy), list[str]()
    await first.execute("SELECT pg_advisory_lock($1)", LOCK_KEY)
    second = asyncio.create_task(upgrade(parsed(postgres_copy), told.append))
    pid = first.get_server_pid()
    await until(lambda: told)
    await first.close()
    assert await second == []
    assert told[0].startswith(f"waiting for session {pid} (")
    assert "which holds the lock of keptwork migrate" in told[0]


# --- interrupted


def applied(url: str) -> list[tuple[int, str]]:
    hand = hand_on(url)
    found = history(hand)
    hand.close()
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_migrate_says_where_it_stopped_and_the_next_one_goes_on_from_there(
    postgres_url: str, number: signal.Signals
) -> None:
    leave_behind(postgres_url)
    reader = hand_on(postgres_url)
    reader.run("BEGIN")
    reader.rows("SELECT 1 FROM jobs")
    migrating = command.start("migrate", "--db", postgres_url)
    assert migrating.stderr is not None
    assert "keptwork: waiting for session" in migrating.stderr.readline()
    migrating.send_signal(number)
    said = migrating.communicate(timeout=PATIENCE)[1]
    (line,) = said.splitlines()
    reader.run("ROLLBACK")
    reader.close()
    done = applied(postgres_url)
    stopped = done[-1][0] + 1
    assert (migrating.returncode, line) == (
        130,
        f"keptwork: stopped in migration {stopped:04} {migrations(POSTGRES)[stopped - 1].name} "
        f"({stopped - 1} of {newest() - 1}). Each migration is applied whole or not at all. "
        "To continue, run: keptwork migrate",
    )
    assert command.run("migrate", "--db", postgres_url).returncode == 0
    assert [number for number, _ in applied(postgres_url)] == list(range(1, newest() + 1))


async def test_an_interrupted_migration_of_a_file_says_where_it_stopped_and_the_next_one_goes_on_from_there(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def interrupted(db: apsw.Connection, migration: Migration, execute: Execute) -> None:
        if migration.number == 3:
            loop.call_soon_threadsafe(migrating.cancel)
            while True:
                execute("SELECT 1")
        apply(db, migration, execute)

    apply, loop = file_migrate._apply, asyncio.get_running_loop()
    monkeypatch.setattr(file_migrate, "_apply", interrupted)
    migrating = asyncio.create_task(upgrade(parsed(sqlite_url), told.append))
    with pytest.raises(asyncio.CancelledError):
        await migrating
    monkeypatch.undo()
    assert told == [
        f"stopped in migration 0003 {migrations(POSTGRES)[2].name} (3 of {newest()}). "
        "Each migration is applied whole or not at all. To continue, run: keptwork migrate"
    ]
    assert [number for number, _ in applied(sqlite_url)] == [1, 2]
    assert [migration.number for migration in await upgrade(parsed(sqlite_url))] == list(range(3, newest() + 1))
