"""A log left beside a SQLite file: judged by whoever opens the file first, before a byte of either changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import JOB
from keptwork.errors import NewerDatabase, NotOurDatabase, OrphanedLog, StaleLog
from keptwork.store import NewJob, open_store
from keptwork.store.sqlite.leftover_log import judge, untouching
from tests.support.clerk import Clerk, Refused, clerk
from tests.support.command import run
from tests.support.lives import live


class Overwritten(NamedTuple):
    """A backup copied over a crashed file, whose log is still there; how many jobs the backup has."""

    file: Path
    jobs: int

    @property
    def url(self) -> str:
        return f"sqlite:///{self.file}"

    def bytes(self) -> list[bytes]:
        return [self.file.with_name(f"{self.file.name}{part}").read_bytes() for part in ("", "-wal", "-shm")]


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an early backup, and a file that has grown since; its process was killed."""
    folder = tmp_path_factory.mktemp("crashed")
    file, url = folder / "keptwork.db", f"sqlite:///{folder}/keptwork.db"
    asyncio.run(_live(url, 3))
    shutil.copy(file, folder / "backup.db")
    asyncio.run(_live(url, 80))
    with clerk(url) as one:
        one.enqueue(30)
    return folder


async def _live(url: str, jobs: int) -> None:
    store = await open_store(url)
    await live(store, jobs)
    await store.close()


@pytest.fixture
def overwritten(crashed: Path, tmp_path: Path) -> Overwritten:
    """What anybody does: cp backup.db keptwork.db."""
    for part in ("", "-wal", "-shm"):
        shutil.copy(crashed / f"keptwork.db{part}", tmp_path)
    shutil.copy(crashed / "backup.db", tmp_path / "keptwork.db")
    return Overwritten(tmp_path / "keptwork.db", _jobs(crashed / "backup.db"))


def _jobs(file: Path) -> int:
    db = sqlite3.connect(f"file:{file}?immutable=1", uri=True)
    (count,) = db.execute("SELECT count(*) FROM jobs").fetchone()
    db.close()
    return int(count)


@pytest.mark.acceptance
@pytest.mark.parametrize("command", [("doctor",), ("audit", "verify"), ("migrate",), ("demo",)], ids=" ".join)
def test_backup_copied_over_a_crashed_file_is_refused_and_not_one_byte_changes(overwritten, command):
    before = overwritten.bytes()
    done = run(*command, "--db", overwritten.url)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"{overwritten.file} does not fit its log {overwritten.file}-wal" in line
    assert "nothing was changed" in line
    assert f"move {overwritten.file}-wal and {overwritten.file}-shm to another folder and try again" in line
    assert line.endswith("restore your last backup with: keptwork restore FILE")
    assert overwritten.bytes() == before


@pytest.mark.acceptance
def test_backup_is_whole_once_the_stale_log_is_moved_away(overwritten, tmp_path):
    (tmp_path / "aside").mkdir()
    for part in ("-wal", "-shm"):
        shutil.move(f"{overwritten.file}{part}", tmp_path / "aside")
    assert asyncio.run(_counted(overwritten.url)) == overwritten.jobs


async def _counted(url: str) -> int:
    store = await open_store(url)
    try:
        assert (await verify.verify(store)).clean
        return (await store.counts(JOB))[0]
    finally:
        await store.close()


@pytest.mark.acceptance
def test_backup_is_destroyed_without_the_judgement(overwritten):
    """The twin: what the judgement prevents."""
    before = overwritten.bytes()
    with contextlib.suppress(Refused, AssertionError):  # destroyed before it was noticed
        Clerk(overwritten.url, "judge").close()
    assert overwritten.file.read_bytes() != before[0]


@pytest.mark.acceptance
def test_many_processes_at_once_all_refuse_the_stale_log(overwritten):
    before = overwritten.bytes()

    def opened(_: int) -> str:
        with pytest.raises(Refused) as refused:
            Clerk(overwritten.url)
        return str(refused.value)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(opened, range(4)))
    assert all("does not fit its log" in answer for answer in answers)
    assert overwritten.bytes() == before


@pytest.mark.acceptance
def test_log_that_others_have_open_is_not_judged_again(sqlite_copy):
    """Checking a large file takes seconds, which nobody who joins others has to wait for."""
    file = Path(sqlite_copy.removeprefix("sqlite:///"))
    with clerk(sqlite_copy) as other:
        other.enqueue(7)
        with pytest.raises(apsw.BusyError):
            untouching(str(file)).execute("SELECT count(*) FROM jobs")
        judge(str(file))
        with clerk(sqlite_copy) as another:
            assert another.enqueue(1) == 1
    assert asyncio.run(_counted(sqlite_copy)) == 8


@pytest.mark.acceptance
def test_log_without_its_file_is_not_deleted(sqlite_copy, tmp_path):
    """SQLite deletes a log whose file is new: acknowledged work, if the file was only moved."""
    file = Path(sqlite_copy.removeprefix("sqlite:///"))
    with clerk(sqlite_copy) as one:
        one.enqueue(9)
    log = Path(f"{file}-wal").read_bytes()
    file.rename(tmp_path / "moved.db")
    for create in (True, False):
        with pytest.raises(OrphanedLog, match=f"its log {file}-wal can hold acknowledged work"):
            asyncio.run(open_store(sqlite_copy, create=create))
    file.touch()
    with pytest.raises(OrphanedLog):
        asyncio.run(open_store(sqlite_copy))
    assert Path(f"{file}-wal").read_bytes() == log
    (tmp_path / "moved.db").rename(file)
    assert asyncio.run(_counted(sqlite_copy)) == 9


def _left_by_another_program(file: Path, sql: str) -> None:
    """A program that is killed with its work in the log."""
    script = (
        f"import os, sqlite3; db = sqlite3.connect({str(file)!r}); db.executescript({sql!r}); os.kill(os.getpid(), 9)"
    )
    subprocess.run(["python3", "-c", script], check=False)
    assert os.path.getsize(f"{file}-wal")


@pytest.mark.acceptance
async def test_file_and_log_of_another_program_stay_as_they_are(tmp_path):
    file = tmp_path / "theirs.db"
    _left_by_another_program(file, "PRAGMA journal_mode=wal; CREATE TABLE jobs (ours); INSERT INTO jobs VALUES (1);")
    theirs = Overwritten(file, 1)
    before = theirs.bytes()
    with pytest.raises(NotOurDatabase):
        await open_store(theirs.url)
    assert theirs.bytes() == before


@pytest.mark.acceptance
async def test_file_and_log_of_a_newer_program_stay_as_they_are(sqlite_copy):
    file = Path(sqlite_copy.removeprefix("sqlite:///"))
    _left_by_another_program(file, "INSERT INTO keptwork_migrations VALUES (99, 'later', 0);")
    newer = Overwritten(file, 0)
    before = newer.bytes()
    with pytest.raises(NewerDatabase, match="Nothing was changed"):
        await open_store(newer.url)
    assert newer.bytes() == before


@pytest.mark.acceptance
async def test_index_that_contradicts_its_table_is_found_in_a_leftover_log(sqlite_copy):
    """`quick_check` does not compare indexes with tables; a stale log can leave that and nothing else."""
    file = Path(sqlite_copy.removeprefix("sqlite:///"))
    store = await open_store(sqlite_copy)
    await store.enqueue([NewJob("busy") for _ in range(5)])
    await store.close()
    _left_by_another_program(
        file,
        "PRAGMA writable_schema=ON; CREATE TABLE spare (a); INSERT INTO spare VALUES (1); CREATE INDEX s ON spare (a);"
        "CREATE TABLE other (a); CREATE INDEX o ON other (a);"
        "UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = 'o') WHERE name = 's';"
        "DELETE FROM sqlite_schema WHERE name = 'o';",
    )
    with pytest.raises(StaleLog):
        await open_store(sqlite_copy)
