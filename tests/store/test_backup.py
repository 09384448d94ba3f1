"""Online backups: taken while a writer works, restored, and whole: nothing acknowledged before is missing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from keptwork.store import Event, Store, open_store
from keptwork.store.url import database_url as parsed
from tests.store.conftest import hand_on
from tests.store.intact import damages
from tests.store.walk import walk
from tests.support import postgres_server as postgres
from tests.support.postgres_binaries import environment
from tests.support.postgres_server import PostgresServer
from tests.support.second_server import restored

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]
# A server that has been at work for a while: a new one is behind it in transaction ids.
SPEND_TRANSACTION_IDS = "DO $$ BEGIN FOR i IN 1..20000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$"


class Writer:
    """A process at work on a database."""

    def __init__(self, url: str) -> None:
        argv = [sys.executable, "-m", "tests.store.busy_writer", url]
        self._process = subprocess.Popen(argv, stdin=-1, stdout=-1, text=True, cwd=ROOT)

    def count(self, batches: int = 1) -> int:
        """Waits for so many more batches; the number of jobs acknowledged so far."""
        assert self._process.stdout is not None
        lines = [self._process.stdout.readline() for _ in range(batches)]
        return int(lines[-1])

    def stop(self) -> int:
        """Lets it finish its batch; the number of jobs acknowledged in all."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        counts = self._process.stdout.read().split()
        self._process.stdout.close()
        assert self._process.wait(60) == 0
        return int(counts[-1]) if counts else 0


@contextmanager
def at_work(url: str) -> Iterator[Writer]:
    writer = Writer(url)
    try:
        writer.count(batches=5)
        yield writer
    finally:
        writer.stop()


def backed_up(url: str, copy: str, take: Callable[[], None]) -> tuple[int, int]:
    """Takes a backup in the midst of work and restores it; what had been acknowledged before it began, and what had
    been when the writer was past the copy."""
    with at_work(url) as writer:
        before = writer.count()
        take()
        after = writer.count()
        while after <= acknowledged(copy):
            after = writer.count()
    return before, after


def acknowledged(url: str) -> int:
    hand = hand_on(url)
    (found,) = hand.rows("SELECT count(*) AS n FROM jobs WHERE state = 'succeeded'")
    hand.close()
    return int(found["n"])


def is_whole(url: str, before: int, after: int) -> None:
    """Nothing is wrong with the copy, and it is neither older nor newer than the time it was taken."""
    assert before <= acknowledged(url) < after
    hand = hand_on(url)
    assert list(damages(hand)) == []
    lives_on(url)
    assert list(damages(hand)) == []
    hand.close()


def lives_on(url: str) -> None:
    """The product opens the copy, works on it, and finds its newest events at the end of the log."""

    async def on() -> None:
        store = await open_store(url)
        try:
            id = await walk(store)
            log = await whole_log(store)
        finally:
            await store.close()
        assert [event.entity_id for event in log[-4:]] == [id] * 4

    asyncio.run(on())


async def whole_log(store: Store) -> list[Event]:
    """Every event in the order of commits; a reader may have to wait for a transaction of somebody else's to end."""
    log: list[Event] = []
    async with asyncio.timeout(60):
        while len(log) < await store.event_count():
            log += await store.events(after=log[-1].cursor if log else None, limit=1000) or await asyncio.sleep(
                0.05, []
            )
    return log


# --- SQLite


def by_the_backup_api(source: str, copy: str) -> None:
    """In steps, so that the writer gets in between; each is larger, because a write makes SQLite begin again."""
    into, out_of = apsw.Connection(copy), apsw.Connection(source)
    out_of.set_busy_timeout(30_000)
    with into.backup("main", out_of, "main") as backup:
        pages = 10
        while not backup.done:
            backup.step(pages)
            pages *= 2
    into.close()
    out_of.close()


def by_vacuum_into(source: str, copy: str) -> None:
    db = apsw.Connection(source)
    db.set_busy_timeout(30_000)
    db.execute("VACUUM INTO ?", (copy,))
    db.close()


@pytest.mark.parametrize("copied", [by_the_backup_api, by_vacuum_into])
def test_a_copy_of_a_file_at_work_is_whole(sqlite_url, tmp_path, copied):
    copy = f"sqlite:///{tmp_path}/copy.db"
    counts = backed_up(sqlite_url, copy, lambda: copied(parsed(sqlite_url).path, parsed(copy).path))
    hand = hand_on(copy)
    assert hand.rows("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    hand.close()
    is_whole(copy, *counts)


# --- PostgreSQL


@pytest.fixture(scope="module")
def primary() -> Iterator[PostgresServer]:
    """A server of our own: a base backup copies all that is on it."""
    with postgres.start() as server:
        server.superuser_sql(SPEND_TRANSACTION_IDS)
        yield server


def database_of(url: str) -> str:
    return url.rpartition("/")[2]


def test_a_base_backup_of_a_server_at_work_is_whole(primary):
    url = primary.create_database()
    with at_work(url) as writer:
        before = writer.count()
        with restored(primary) as copy:
            there = copy.url(database_of(url))
            after = writer.count()
            while after <= acknowledged(there):
                after = writer.count()
            is_whole(there, before, after)


def run(server: PostgresServer, program: str, *argv: str) -> None:
    done = subprocess.run([str(server.bin(program)), *argv], capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("by", ["the superuser", "the owner"])
def test_a_dump_of_a_database_at_work_restored_on_a_new_server_is_whole(primary, tmp_path, by):
    """The new server's transaction ids are behind those in the log: new events still come after the old ones."""
    url, file = primary.create_database(), str(tmp_path / "dump")
    # Rows are under forced row-level security: whoever is not a superuser says that its policies are to be followed.
    socket = ["-h", str(primary.socket_folder), "-p", str(primary.port), "-U", "postgres", "-d", database_of(url)]
    login = socket if by == "the superuser" else ["--enable-row-security", "-d", url]
    with postgres.start() as other:
        other.superuser_sql("CREATE ROLE keptwork_app NOLOGIN; GRANT keptwork_app TO keptwork")
        there = other.create_database()

        def dump_and_restore() -> None:
            run(primary, "pg_dump", "-Fc", "-f", file, *login)
            run(other, "pg_restore", "--exit-on-error", "-d", there, file)

        counts = backed_up(url, there, dump_and_restore)
        assert is_behind_its_log(there)
        is_whole(there, *counts)


def is_behind_its_log(url: str) -> bool:
    hand = hand_on(url)
    (found,) = hand.rows("SELECT (SELECT max(tx) FROM events) > pg_current_xact_id()::text::bigint AS behind")
    hand.close()
    return bool(found["behind"])


# --- the checker itself


DAMAGES = {
    "a lost event": ("DELETE FROM events WHERE seq = 2 AND entity = 'job'", "is missing"),
    "a lost tail": ("DELETE FROM events WHERE trigger = 'succeed'", "the row says"),
    "a lost row": ("DELETE FROM jobs", "events and no row"),
    "an edited state": ("UPDATE jobs SET state = 'failed'", "the row says"),
    "an edited time": ("UPDATE jobs SET completed_at = completed_at + 1", "the row says"),
    "an edited event": ("UPDATE events SET epoch = 3 WHERE trigger = 'start'", "has epoch 3"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checker_tells_damage(prepared, damage):
    lives_on(prepared)  # so that there is something to damage
    hand = hand_on(prepared)
    assert list(damages(hand)) == []
    for trigger, table in hand.triggers():
        hand.drop(trigger, table)
    statement, told = DAMAGES[damage]
    hand.run(statement)
    assert [line for line in damages(hand) if told in line]
    hand.close()
