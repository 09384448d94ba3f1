"""The names by which a SQLite file may be opened: several logs for one file are refused, other names are safe."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from keptwork.errors import HardLinks, MountedAlone, SharedFiles
from keptwork.store import open_store
from keptwork.store.sqlite import file_location
from keptwork.store.url import database_url
from tests.cli.test_bad_disk import namespaces_allowed
from tests.support.clerk import Clerk, Refused, clerk
from tests.support.command import run


@pytest.fixture
def file(sqlite_copy: str) -> Path:
    return Path(sqlite_copy.removeprefix("sqlite:///"))


def jobs(file: Path) -> int:
    db = sqlite3.connect(file)
    (count,) = db.execute("SELECT count(*) FROM jobs").fetchone()
    db.close()
    return int(count)


# --- hard links


@pytest.mark.parametrize("command", [("doctor",), ("migrate",), ("jobs", "list")], ids=" ".join)
def test_file_with_hard_links_is_refused_naming_those_beside_it(file, command):
    for name in ("b.db", "a.db"):
        os.link(file, file.with_name(name))
    before = file.read_bytes()
    done = run(*command, "--db", f"sqlite:///{file}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "has 3 hard links (a.db and b.db beside it)" in done.stderr
    assert "keep the name that has a -wal file beside it" in done.stderr
    assert file.read_bytes() == before


async def test_hard_link_in_another_folder_is_refused_and_opens_once_it_is_removed(file, sqlite_copy, tmp_path):
    (tmp_path / "other").mkdir()
    os.link(file, tmp_path / "other" / "x.db")
    with pytest.raises(HardLinks, match=r"has 2 hard links \(in other folders\)"):
        await open_store(sqlite_copy)
    (tmp_path / "other" / "x.db").unlink()
    await (await open_store(sqlite_copy)).close()


@pytest.mark.acceptance
@pytest.mark.parametrize("without", [None, "doors"])
def test_two_hard_links_lose_acknowledged_jobs_only_without_the_refusal(file, without):
    """Each name has a log of its own, and the last to close overwrites what the other wrote."""
    other = file.with_name("other.db")
    with clerk(f"sqlite:///{file}", without) as first:
        acknowledged = first.enqueue(20)
        os.link(file, other)
        acknowledged += by_the_other_name(other, without)
        acknowledged += first.enqueue(20) - 20
        first.close()
    lost = acknowledged - found(file)
    assert lost == 0 if without is None else lost > 0


def by_the_other_name(other: Path, without: str | None) -> int:
    """What a process acknowledged by that name; without the guard it may, with it the process is refused."""
    if without is None:
        with pytest.raises(Refused, match=r"has 2 hard links \(keptwork.db beside it\)"):
            Clerk(f"sqlite:///{other}")
        return 0
    with clerk(f"sqlite:///{other}", without) as second:
        acknowledged = second.enqueue(20)
        second.close()
    return acknowledged


def found(file: Path) -> int:
    """The jobs of a file, where it can still be read."""
    try:
        return jobs(file)
    except sqlite3.DatabaseError:
        return 0


# --- other names


@pytest.mark.acceptance
def test_symbolic_link_and_descriptor_are_safe_doors(file, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(file)
    by_descriptor = f"sqlite:////proc/self/fd/{file}"
    with clerk(f"sqlite:///{file}") as first, clerk(f"sqlite:///{link}") as second, clerk(by_descriptor) as third:
        for one in (first, second, third) * 2:
            one.enqueue(10)
        acknowledged = first.acknowledged + second.acknowledged + third.acknowledged
    assert jobs(file) == acknowledged == 60


def mounted(script: str) -> tuple[str, ...]:
    """The beginning of a command that has a mount of its own."""
    return ("unshare", "-rm", "sh", "-c", f'{script} && exec "$@"', "sh")


@pytest.mark.acceptance
async def test_file_that_is_mounted_without_its_folder_is_refused(file, tmp_path, monkeypatch):
    alone = tmp_path / "alone" / "x y.db"
    alone.parent.mkdir()
    alone.touch()
    if namespaces_allowed():
        with pytest.raises(Refused, match=f"mounted without its folder.*Mount the folder {alone.parent} instead"):
            Clerk(f"sqlite:///{alone}", prefix=mounted(f'mount --bind "{file}" "{alone}"'))
    escaped = str(alone).replace(" ", r"\040")
    tell(monkeypatch, tmp_path, f"99 27 8:1 /x {escaped} rw - ext4 /dev/sda rw")
    shutil.copy(file, alone)
    with pytest.raises(MountedAlone):
        await open_store(f"sqlite:///{alone}")


@pytest.mark.acceptance
def test_folder_that_is_mounted_twice_is_a_safe_door(file, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    twice = mounted(f'mount --bind "{file.parent}" "{again}"') if namespaces_allowed() else ()
    if not twice:
        again.rmdir()
        again.symlink_to(file.parent)
    with clerk(f"sqlite:///{file}") as first, clerk(f"sqlite:///{again}/{file.name}", prefix=twice) as second:
        for one in (first, second) * 2:
            one.enqueue(10)
        acknowledged = first.acknowledged + second.acknowledged
    assert jobs(file) == acknowledged == 40


# --- file systems


def tell(monkeypatch: pytest.MonkeyPatch, folder: Path, *lines: str) -> None:
    """What Linux would say is mounted: no network file system can be had in a test."""
    told = folder / "mountinfo"
    told.write_text("".join(f"{line}\n" for line in ("22 1 254:0 / / rw - ext4 /dev/vda rw", *lines)))
    monkeypatch.setattr(file_location, "MOUNTINFO", str(told))


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "glusterfs", "fuse.glusterfs"])
async def test_network_file_system_is_refused_unless_the_url_accepts_it(sqlite_copy, tmp_path, monkeypatch, kind):
    tell(monkeypatch, tmp_path, f"30 22 0:44 / {tmp_path} rw,relatime shared:1 - {kind} server:/x rw")
    with pytest.raises(SharedFiles, match=rf"is on {kind}, a network file system.*add to the URL: \?shared=ok$"):
        await open_store(sqlite_copy)
    store = await open_store(f"{sqlite_copy}?shared=ok")
    assert await store.event_count() == 0
    await store.close()


@pytest.mark.parametrize("kind", ["virtiofs", "fuse.grpcfuse", "fuse", "fakeowner"])
async def test_file_system_that_is_passed_on_to_a_machine_only_warns(sqlite_copy, tmp_path, monkeypatch, caplog, kind):
    tell(monkeypatch, tmp_path, f"30 22 0:44 / {tmp_path} rw,relatime - {kind} x rw")
    await (await open_store(sqlite_copy)).close()
    assert [f"is on {kind}: run every process" in message for message in caplog.messages] == [True]
    caplog.clear()
    await (await open_store(f"{sqlite_copy}?shared=ok")).close()
    assert caplog.messages == []


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "overlay", "tmpfs", "zfs", "fuseblk"])
async def test_local_file_system_opens_without_a_word(sqlite_copy, tmp_path, monkeypatch, caplog, kind):
    tell(monkeypatch, tmp_path, "29 22 0:9 / /mnt rw - nfs4 server:/x rw", f"30 22 0:4 / {tmp_path} rw - {kind} x rw")
    await (await open_store(sqlite_copy)).close()
    assert caplog.messages == []


def test_url_keeps_saying_that_a_shared_file_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    both = database_url("sqlite:///x.db?synchronous=normal&shared=ok")
    assert (both.shared, both.synchronous) == (True, "normal")
    again = database_url(both.lasting)
    assert (again.shared, again.synchronous, again.path) == (True, "normal", f"{tmp_path}/x.db")
    assert database_url("sqlite:///x.db").shared is False


@pytest.mark.acceptance
def test_system_without_mountinfo_opens_without_a_word(sqlite_copy):
    program = (
        "import asyncio, sys; from keptwork.store import open_store; from keptwork.store.sqlite import file_location; "
        "file_location.MOUNTINFO = '/not/there'; "
        "asyncio.run(open_store(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, sqlite_copy], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
