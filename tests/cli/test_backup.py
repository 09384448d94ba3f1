"""`keptwork backup` and `keptwork restore`, as an operator types them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from keptwork.audit import verify as audit
from keptwork.errors import BadBackup, MissingProgram, NotBackedUp, NotPermitted, SeesNoRows
from keptwork.maintenance import backups
from keptwork.store import NewJob, open_store
from keptwork.store.postgres import backup_programs
from tests.cli.refusals import contents, populate, refused
from tests.support.clerk import clerk
from tests.support.command import run
from tests.support.postgres_server import PostgresServer


@pytest.fixture(autouse=True)
def programs(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL's client programs of the server's version come first, as on a machine that has them."""
    monkeypatch.setenv("PATH", f"{postgres_server.bin('')}:{os.environ['PATH']}")


@pytest.fixture
def elsewhere(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[str]:
    """A database of the same kind that does not exist yet, or is empty."""
    if database_url.startswith("sqlite"):
        yield f"sqlite:///{tmp_path}/elsewhere.db"
    else:
        yield request.getfixturevalue("postgres_url")


def verified(url: str) -> dict[str, int]:
    """Every row of a clean database, by table."""

    async def verify() -> dict[str, int]:
        store = await open_store(url, create=False)
        try:
            verdict = await audit.verify(store)
            assert verdict.clean, verdict.problems
            return {**verdict.rows, "events": verdict.events}
        finally:
            await store.close()

    return asyncio.run(verify())


def test_backup_restores_into_an_empty_place_with_equal_counts(database_url, elsewhere, tmp_path):
    populate(database_url)
    before = verified(database_url)
    taken = run("backup", f"{tmp_path}/copy", "--db", database_url)
    assert (taken.returncode, taken.stderr) == (0, "")
    assert f"holds {before['job']} jobs, {before['events']} events, and" in taken.stdout
    assert "every count agrees" in taken.stdout
    restored = run("restore", f"{tmp_path}/copy", "--db", elsewhere, "--json")
    assert (restored.returncode, restored.stderr) == (0, "")
    rows = {name.removeprefix("public."): count for name, count in json.loads(restored.stdout)["rows"].items()}
    assert (rows["jobs"], rows["events"]) == (before["job"], before["events"])
    assert verified(elsewhere) == verified(database_url) == before


def test_tables_of_the_user_are_in_the_backup(database_url, elsewhere, tmp_path):
    """Rows and jobs commit together, so they are restored together."""
    run_sql(database_url, 'CREATE TABLE "my ""orders""" (id integer PRIMARY KEY)')
    run_sql(database_url, 'INSERT INTO "my ""orders""" VALUES (17)')
    asyncio.run(backups.back_up(database_url, tmp_path / "copy"))
    restored = asyncio.run(backups.restore(elsewhere, tmp_path / "copy"))
    assert 1 in [count for name, count in restored.rows.items() if "orders" in name]


def run_sql(url: str, sql: str) -> None:
    async def execute() -> None:
        if url.startswith("sqlite"):
            db = sqlite3.connect(url.removeprefix("sqlite:///"))
            db.execute(sql)
            db.commit()
            db.close()
        else:
            connection = await asyncpg.connect(url)
            await connection.execute(sql)
            await connection.close()

    asyncio.run(execute())


def test_existing_file_is_never_overwritten_by_a_backup(database_url, tmp_path):
    (tmp_path / "copy").write_text("the only copy of something else")
    refused(run("backup", f"{tmp_path}/copy", "--db", database_url), 1, f"Cannot write {tmp_path}/copy", "exists")
    assert (tmp_path / "copy").read_text() == "the only copy of something else"


def test_backup_into_a_missing_folder_is_refused_and_leaves_nothing(database_url, tmp_path):
    done = run("backup", f"{tmp_path}/not/there/copy", "--db", database_url)
    refused(done, 1, f"{tmp_path}/not/there")
    assert not (tmp_path / "not").exists()


@pytest.mark.parametrize("what", ["nothing", "text", "an empty file", "a file of another program", "the other kind"])
def test_file_that_is_no_backup_is_refused_and_nothing_changes(database_url, elsewhere, tmp_path, what):
    file = tmp_path / "copy"
    if what == "text":
        file.write_text("not a backup" * 1000)
    elif what == "an empty file":
        file.touch()
    elif what == "a file of another program":
        run_sql(f"sqlite:///{file}", "CREATE TABLE jobs (ours)")
    elif what == "the other kind":
        file.write_bytes(b"PGDMP" if elsewhere.startswith("sqlite") else b"SQLite format 3\0")
    before = contents(tmp_path)
    refused(run("restore", str(file), "--db", elsewhere), 1, f"{file} cannot be restored", "Nothing was changed")
    assert contents(tmp_path) == before


def test_copy_starts_paused_if_asked(database_url, elsewhere, tmp_path):
    async def fill() -> None:
        store = await open_store(database_url)
        await store.enqueue([NewJob("busy"), NewJob("busy", queue="mail")])
        await store.close()

    asyncio.run(fill())
    asyncio.run(backups.back_up(database_url, tmp_path / "copy"))
    done = run("restore", f"{tmp_path}/copy", "--paused", "--db", elsewhere)
    assert "Every queue and schedule is paused" in done.stdout, done.stderr
    queues = json.loads(run("queues", "list", "--json", "--db", elsewhere).stdout)["queues"]
    assert {queue["name"]: queue["paused_at"] is not None for queue in queues} == {"default": True, "mail": True}


# --- SQLite


def test_backup_is_readable_by_no_more_users_than_the_database(sqlite_copy, tmp_path):
    Path(sqlite_copy.removeprefix("sqlite:///")).chmod(0o600)
    asyncio.run(backups.back_up(sqlite_copy, tmp_path / "copy"))
    assert (tmp_path / "copy").stat().st_mode & 0o777 == 0o600


@pytest.fixture
def crashed(sqlite_copy: str) -> Path:
    """A file whose process was killed, with its log."""
    with clerk(sqlite_copy) as one:
        one.enqueue(30)
    return Path(sqlite_copy.removeprefix("sqlite:///"))


@pytest.mark.acceptance
def test_restore_over_a_crashed_file_sets_it_aside_with_its_log(crashed, tmp_path):
    backup = tmp_path / "copy.db"
    url, size = f"sqlite:///{crashed}", crashed.stat().st_size
    asyncio.run(backups.back_up(url, backup))
    with clerk(url) as one:
        one.enqueue(40)
    log = Path(f"{crashed}-wal").read_bytes()
    crashed.chmod(0o640)
    done = run("restore", str(backup), "--db", url, "--json")
    assert done.returncode == 0, done.stderr
    aside = Path(json.loads(done.stdout)["aside"])
    assert Path(f"{aside}-wal").read_bytes() == log
    assert (verified(url)["job"], verified(f"sqlite:///{aside}")["job"]) == (30, 70)
    assert crashed.stat().st_mode & 0o777 == 0o640
    assert size
    assert sorted(path.name for path in tmp_path.iterdir() if ".partial" in path.name) == []


@pytest.mark.acceptance
def test_restore_is_refused_while_a_process_has_the_file_open(crashed, tmp_path):
    url = f"sqlite:///{crashed}"
    asyncio.run(backups.back_up(url, tmp_path / "copy.db"))
    with clerk(url) as one:
        one.enqueue(1)
        refused(run("restore", f"{tmp_path}/copy.db", "--db", url), 1, f"{crashed} is open", "Nothing was changed")
        assert one.enqueue(1) == 2
        one.close()
    assert verified(url)["job"] == 32


@pytest.mark.acceptance
def test_restore_of_a_file_that_is_open_is_refused(crashed, tmp_path):
    """A live file is no backup: what it holds is not one moment."""
    with clerk(f"sqlite:///{crashed}") as one:
        one.enqueue(1)
        done = run("restore", str(crashed), "--db", f"sqlite:///{tmp_path}/new.db")
        refused(done, 1, f"{crashed} is open")


@pytest.mark.acceptance
def test_restore_of_a_database_onto_itself_is_refused(crashed):
    done = run("restore", str(crashed), "--db", f"sqlite:///{crashed}")
    refused(done, 1, "it is the database itself", "Nothing was changed")


@pytest.mark.acceptance
def test_restore_over_damage_needs_no_readable_file(crashed, tmp_path):
    url = f"sqlite:///{crashed}"
    asyncio.run(backups.back_up(url, tmp_path / "copy.db"))
    crashed.write_bytes(b"\xff" * 5000)
    assert run("restore", f"{tmp_path}/copy.db", "--db", url).returncode == 0
    assert verified(url)["job"] == 30


@pytest.mark.acceptance
def test_restore_beside_a_log_without_its_file_keeps_the_log(crashed, tmp_path):
    url = f"sqlite:///{crashed}"
    asyncio.run(backups.back_up(url, tmp_path / "copy.db"))
    with clerk(url) as one:
        one.enqueue(5)
    log = Path(f"{crashed}-wal").read_bytes()
    crashed.unlink()
    aside = asyncio.run(backups.restore(url, tmp_path / "copy.db")).aside
    assert verified(url)["job"] == 30
    assert Path(f"{aside}-wal").read_bytes() == log


@pytest.mark.acceptance
def test_damaged_backup_is_refused_and_the_database_stays(crashed, tmp_path):
    url, backup = f"sqlite:///{crashed}", tmp_path / "copy.db"
    asyncio.run(backups.back_up(url, backup))
    with backup.open("r+b") as file:
        file.seek(backup.stat().st_size // 2)
        file.write(b"\xff" * 20_000)
    before = contents(tmp_path)
    refused(run("restore", str(backup), "--db", url), 1, f"{backup} cannot be restored", "Nothing was changed")
    assert contents(tmp_path) == before


@pytest.mark.acceptance
def test_backup_with_a_log_beside_it_is_restored_with_what_is_in_the_log(crashed, tmp_path):
    """What a copy of a whole folder has: a file, and its log."""
    (tmp_path / "copied").mkdir()
    for part in ("", "-wal"):
        shutil.copy(f"{crashed}{part}", tmp_path / "copied")
    before = contents(tmp_path / "copied")
    asyncio.run(backups.restore(f"sqlite:///{tmp_path}/new.db", tmp_path / "copied" / crashed.name))
    assert verified(f"sqlite:///{tmp_path}/new.db")["job"] == 30
    assert contents(tmp_path / "copied") == before


@pytest.mark.acceptance
def test_interrupted_restore_leaves_a_database_that_is_refused_and_the_next_one_ends_it(crashed, tmp_path, monkeypatch):
    """Killed between any two steps of the exchange, the name never leads to something that looks whole and is not."""
    url, backup = f"sqlite:///{crashed}", tmp_path / "copy.db"
    asyncio.run(backups.back_up(url, backup))
    with clerk(url) as one:
        one.enqueue(40)
    for step in (1, 2, 2):  # before the log is moved, before its index is, before the copy gets the name
        with monkeypatch.context() as patch:
            interrupt(patch, step)
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(backups.restore(url, backup))
        refused(run("migrate", "--db", url), 1, "has 2 hard links (keptwork.db.before-")
    aside = asyncio.run(backups.restore(url, backup)).aside
    assert (verified(url)["job"], verified(f"sqlite:///{aside}")["job"]) == (30, 70)
    assert sorted(tmp_path.glob("*.partial")) == []


def interrupt(patch: pytest.MonkeyPatch, step: int) -> None:
    """The restore ends before that rename of its own, as if it were killed there."""
    done, renames = [0], {"rename": os.rename, "replace": os.replace}

    def counted(name: str):
        def rename(*paths: str) -> None:
            done[0] += 1
            if done[0] == step:
                raise KeyboardInterrupt
            renames[name](*paths)

        return rename

    for name in renames:
        patch.setattr(os, name, counted(name))


def test_database_in_memory_has_no_backup(tmp_path):
    done = run("backup", f"{tmp_path}/copy", "--db", "sqlite://:memory:")
    refused(done, 2, "a database in memory has no backup")


# --- PostgreSQL


def test_restore_into_a_database_in_use_is_refused(postgres_copy, tmp_path):
    asyncio.run(backups.back_up(postgres_copy, tmp_path / "copy"))
    done = run("restore", f"{tmp_path}/copy", "--db", postgres_copy)
    refused(done, 1, "is in use; restore into an empty one: createdb NAME", "Nothing was changed")


def test_login_that_sees_no_rows_takes_no_backup(postgres_server, postgres_copy, tmp_path):
    """By hand, such a login makes an empty dump, with exit code 0."""
    reader = "reader_" + postgres_copy.rpartition("_")[2]
    postgres_server.superuser_sql(f"CREATE ROLE {reader} LOGIN PASSWORD 'x' IN ROLE pg_read_all_data")
    database = postgres_copy.rpartition("/")[2]
    populate(postgres_copy)
    url = postgres_server.url(database, reader, "x")
    with pytest.raises((SeesNoRows, NotPermitted)):
        asyncio.run(backups.back_up(url, tmp_path / "copy"))
    assert contents(tmp_path) == {}
    by_hand = ["pg_dump", "-Fc", "--enable-row-security", "-d", url, "-f", f"{tmp_path}/by-hand"]
    subprocess.run(by_hand, check=True)
    target = postgres_server.create_database()
    with pytest.raises(BadBackup, match="it is empty: the login that took it saw no rows"):
        asyncio.run(backups.restore(target, tmp_path / "by-hand"))
    postgres_server.drop_database(target)
    postgres_server.superuser_sql(f"DROP ROLE {reader}")


def test_missing_program_is_named_with_the_version_that_is_needed(postgres_copy, tmp_path, monkeypatch):
    monkeypatch.setattr(backup_programs, "USUAL_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgram, match=r"pg_dump of PostgreSQL \d+ or newer is not installed on this machine\. "):
        asyncio.run(backups.back_up(postgres_copy, tmp_path / "copy"))
    old = tmp_path / "pg_dump"
    old.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.24'\n")
    old.chmod(0o755)
    with pytest.raises(MissingProgram, match="found only version 9"):
        asyncio.run(backups.back_up(postgres_copy, tmp_path / "copy"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pg_dump"]


def test_database_without_our_tables_is_not_backed_up(postgres_url, tmp_path):
    with pytest.raises(NotBackedUp, match="it holds no Keptwork database"):
        asyncio.run(backups.back_up(postgres_url, tmp_path / "copy"))


def test_password_is_never_among_the_arguments_of_a_program(tmp_path, monkeypatch, postgres_copy):
    shown = tmp_path / "shown"
    for name in ("pg_dump", "pg_restore"):
        program = tmp_path / name
        program.write_text(
            f'#!/bin/sh\n[ "$1" = --version ] && echo "{name} (PostgreSQL) 16.1" && exit\n'
            f'echo "$@" >> {shown}\necho "PGPASSWORD=$PGPASSWORD" >> {shown}.secret\nexit 1\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    password = postgres_copy.partition("@")[0].rpartition(":")[2]
    done = run("backup", f"{tmp_path}/copy", "--db", postgres_copy)
    refused(done, 1, "pg_dump failed")
    assert password not in shown.read_text() + done.stderr
    assert f"PGPASSWORD={password}" in Path(f"{shown}.secret").read_text()


def test_backup_reaches_a_schema_named_in_the_url(postgres_url, postgres_server, tmp_path):
    url = f"{postgres_url}?search_path=other"
    populate(url)
    asyncio.run(backups.back_up(url, tmp_path / "copy"))
    target = f"{postgres_server.create_database()}?search_path=other"
    asyncio.run(backups.restore(target, tmp_path / "copy"))
    assert verified(target) == verified(url)
    postgres_server.drop_database(target.partition("?")[0])
