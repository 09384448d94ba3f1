"""Code in the same process that opens our SQLite file a second time: refused before our locks are gone."""

from __future__ import annotations

import io
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.errors import HardLinks, HeldFile
from keptwork.store import NewJob, open_store
from tests.support.clerk import Clerk, Refused, clerk


@pytest.fixture
def file(sqlite_copy: str) -> Path:
    return Path(sqlite_copy.removeprefix("sqlite:///"))


PARTS = ("", "-wal", "-shm")


OPENINGS: list[Callable[[str], object]] = [
    open,
    lambda path: os.open(os.fsencode(path), os.O_RDWR),
    lambda path: Path(path).read_bytes(),
    io.FileIO,
    lambda path: os.open(path, os.O_RDONLY),
    lambda path: shutil.copy(path, f"{path}-copy"),
]


@pytest.mark.parametrize("part", PARTS)
async def test_plain_open_of_a_held_file_is_refused_with_the_way(sqlite_copy, file, part):
    store = await open_store(sqlite_copy)
    await store.enqueue([NewJob("busy")])
    for opening in OPENINGS:
        with pytest.raises(HeldFile, match=r"app\.transaction\(\); copy it with: keptwork backup FILE"):
            opening(f"{file}{part}")
    await store.close()


async def test_stdlib_sqlite3_on_a_held_file_is_refused_by_any_spelling(sqlite_copy, file, monkeypatch):
    store = await open_store(sqlite_copy)
    monkeypatch.chdir(file.parent)
    spellings = (str(file), file, bytes(file), file.name, f"./{file.name}", f"../{file.parent.name}/{file.name}")
    uris = (f"file:{file.name}", f"file:{file}?mode=ro", f"file://{file}", "file:keptwork%2edb?immutable=1")
    for spelling in (*spellings, *uris):
        with pytest.raises(HeldFile):
            sqlite3.connect(spelling, uri=True)
    await store.close()


async def test_other_files_open_as_ever_beside_a_held_file(sqlite_copy, file, tmp_path):
    store = await open_store(sqlite_copy)
    elsewhere = tmp_path / "elsewhere" / file.name
    elsewhere.parent.mkdir()
    elsewhere.write_text("a file of the same name")
    assert elsewhere.read_text() == "a file of the same name"
    (tmp_path / f"{file.name}-notes").touch()
    sqlite3.connect(tmp_path / "other.db").close()
    sqlite3.connect(":memory:").close()
    sqlite3.connect("").close()
    os.close(os.open(tmp_path, os.O_RDONLY))
    await store.close()


async def test_closed_file_may_be_opened_again(sqlite_copy, file):
    first, second = await open_store(sqlite_copy), await open_store(sqlite_copy)
    await first.close()
    with pytest.raises(HeldFile):
        file.read_bytes()
    await second.close()
    assert file.read_bytes().startswith(b"SQLite format 3")
    sqlite3.connect(file).close()


async def test_snapshots_and_second_stores_of_a_process_are_not_refused(sqlite_copy):
    first, second = await open_store(sqlite_copy), await open_store(sqlite_copy)
    await first.enqueue([NewJob("busy")])
    async with second.snapshot() as snapshot:
        assert await snapshot.counts(JOB) == (1, 0)
    await first.close()
    await second.close()


async def test_file_opened_by_a_link_is_held_by_the_name_of_the_link_too(sqlite_copy, file, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(file)
    store = await open_store(f"sqlite:///{link}")
    for name in (link, file, tmp_path / f"{file.name}-shm"):
        with pytest.raises(HeldFile):
            sqlite3.connect(name)
    await store.close()


async def test_second_store_by_a_hard_link_is_refused_in_the_same_process_too(sqlite_copy, file):
    store = await open_store(sqlite_copy)
    os.link(file, file.with_name("other.db"))
    with pytest.raises(HardLinks):
        await open_store(f"sqlite:///{file.with_name('other.db')}")
    async with store.snapshot() as snapshot:  # what is open by its one name goes on
        assert await snapshot.counts(JOB) == (0, 0)
    await store.close()


@pytest.mark.acceptance
def test_forked_child_may_open_what_its_parent_holds(sqlite_copy, file):
    with clerk(sqlite_copy) as holder:
        holder.enqueue(1)
        assert holder.ask(f"forked {file}") == "1"


@pytest.mark.acceptance
@pytest.mark.parametrize("without", [None, "held"])
def test_second_opening_loses_acknowledged_jobs_only_without_the_hook(sqlite_copy, file, without):
    """The shortest way to the loss: the index is opened and closed, another process comes and goes, one is killed."""
    with clerk(sqlite_copy, without) as holder:
        holder.enqueue(10)
        refusals = [_refused(holder, f"open {file}{part}") for part in PARTS]
        with clerk(sqlite_copy) as visitor:
            visitor.close()
        acknowledged = holder.enqueue(10)
    assert refusals == [without is None] * 3
    lost = acknowledged - _jobs(file)
    assert lost == 0 if without is None else lost > 0


def _refused(holder: Clerk, line: str) -> bool:
    try:
        holder.ask(line)
    except Refused:
        return True
    return False


def _jobs(file: Path) -> int:
    db = sqlite3.connect(file)
    (count,) = db.execute("SELECT count(*) FROM jobs").fetchone()
    db.close()
    return int(count)
