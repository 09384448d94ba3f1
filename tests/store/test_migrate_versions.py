"""Many programs at one new database; and a program that is older or newer than the database it meets."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import apsw
import pytest

from keptwork.errors import NewerDatabase, NotMigrated
from keptwork.store import open_store
from keptwork.store.migrations import newest
from keptwork.store.postgres.connections_server import connect as connect_postgres
from keptwork.store.postgres.migrate import migrate_database
from keptwork.store.sqlite.file import connect as connect_sqlite
from keptwork.store.sqlite.file_migrate import migrate_file
from keptwork.store.url import DatabaseUrl
from keptwork.store.url import database_url as parsed
from tests.store.conftest import hand_on
from tests.store.schemas import history, picture
from tests.store.walk import walk
from tests.support import postgres_server as postgres

ROOT = Path(__file__).parents[2]
OPENERS = 8


def open_at_once(urls: list[str]) -> list[str]:
    """As many processes as URLs, started first and then let go together; what each complained of."""
    argv = [sys.executable, "-m", "tests.store.opener"]
    openers = [subprocess.Popen([*argv, url], stdin=-1, stdout=-1, stderr=-1, text=True, cwd=ROOT) for url in urls]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    said = [opener.communicate(timeout=100) for opener in openers]
    return [err for out, err in said if out != "done\n"]


def opened(url: str, *, migrate: bool | None = None, walked: bool = False) -> None:
    """Opens a database as a program would, takes a job through it if asked, and closes it again."""

    async def open_and_close() -> None:
        store = await open_store(url, migrate=migrate)
        try:
            if walked:
                await walk(store)
        finally:
            await store.close()

    asyncio.run(open_and_close())


@pytest.fixture(params=["sqlite", "postgres"])
def new_url(request: pytest.FixtureRequest) -> str:
    """A database nobody has opened yet."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.mark.acceptance
def test_eight_processes_open_one_new_database_and_each_migration_is_applied_once(new_url):
    assert open_at_once([new_url] * OPENERS) == []
    hand = hand_on(new_url)
    assert [number for number, _ in history(hand)] == list(range(1, newest() + 1))
    assert hand.rows("SELECT count(*) AS n FROM jobs") == [{"n": OPENERS}]
    assert hand.rows("SELECT count(*) AS n FROM tenants") == [{"n": 1}]
    hand.close()


@pytest.mark.acceptance
def test_new_databases_of_one_new_server_are_prepared_at_once():
    """Roles belong to the whole server, and the lock of a migration only to its database."""
    with postgres.start() as server:
        assert open_at_once([server.create_database() for _ in range(OPENERS)]) == []


# --- a database of a newer program


def claim_newer(url: str) -> None:
    hand = hand_on(url)
    hand.run(f"INSERT INTO keptwork_migrations (number, name, applied_at) VALUES ({newest() + 97}, 'future', 0)")
    hand.close()


@pytest.mark.parametrize("migrate", [True, False])
def test_a_newer_database_is_refused_with_both_numbers(prepared, migrate):
    claim_newer(prepared)
    before = everything(prepared)
    with pytest.raises(NewerDatabase) as refused:
        opened(prepared, migrate=migrate)
    assert f"has schema {newest() + 97}, newer than the {newest()} this Keptwork knows" in str(refused.value)
    assert everything(prepared) == before


def everything(url: str) -> list[object]:
    """The schema and every row of every table."""
    hand = hand_on(url)
    tables = ("keptwork_migrations", "tenants", "jobs", "workers", "events")
    found = [picture(hand), *(hand.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables)]
    hand.close()
    return found


@pytest.mark.parametrize("journal_mode", ["wal", "delete"])
def test_a_newer_file_is_not_changed_by_a_single_byte(sqlite_url, journal_mode):
    path = Path(parsed(sqlite_url).path)
    opened(sqlite_url, walked=True)
    claim_newer(sqlite_url)
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", journal_mode)
    db.close()
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with pytest.raises(NewerDatabase):
        opened(sqlite_url)
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


# --- a database of an older program


class Enough(Exception):
    """The first migration is done."""


def leave_behind(url: str) -> None:
    """A database as the first migration left it: the way it was when there was no second."""
    target = parsed(url)
    with pytest.raises(Enough):
        asyncio.run(_stop_sqlite(target) if target.dialect == "sqlite" else _stop_postgres(target))


async def _stop_sqlite(url: DatabaseUrl) -> None:
    db = connect_sqlite(url.path)
    begun = 0

    def execute(sql: str) -> None:
        nonlocal begun
        begun += sql.startswith("BEGIN")
        if begun == 2:
            raise Enough
        db.execute(sql)

    try:
        migrate_file(db, execute)
    finally:
        db.close()


async def _stop_postgres(url: DatabaseUrl) -> None:
    connection = await connect_postgres(url)
    begun = 0

    async def execute(sql: str) -> None:
        nonlocal begun
        begun += sql.startswith("CREATE TABLE IF NOT EXISTS keptwork_migrations")
        if begun == 2:
            raise Enough
        await connection.execute(sql)

    try:
        await migrate_database(connection, execute)
    finally:
        await connection.close()


def test_a_database_that_is_behind_is_refused_when_asked_not_to_migrate(new_url):
    leave_behind(new_url)
    before = everything(new_url)
    with pytest.raises(NotMigrated) as refused:
        opened(new_url, migrate=False)
    assert f"has schema 1, this Keptwork needs {newest()}; run: keptwork migrate" in str(refused.value)
    assert everything(new_url) == before


def test_a_program_brings_an_older_file_up_to_date_and_refuses_an_older_postgres_schema(sqlite_url, postgres_url):
    leave_behind(sqlite_url)
    opened(sqlite_url, walked=True)
    leave_behind(postgres_url)
    before = everything(postgres_url)
    with pytest.raises(NotMigrated, match="run: keptwork migrate"):
        opened(postgres_url)
    assert everything(postgres_url) == before


def test_a_database_that_is_behind_is_brought_up_to_date_and_works(new_url):
    leave_behind(new_url)
    opened(new_url, migrate=True, walked=True)
    hand = hand_on(new_url)
    assert [number for number, _ in history(hand)] == list(range(1, newest() + 1))
    hand.close()
    opened(new_url, migrate=False)
