"""Every honest way to get a SQLite file back opens as ever: nothing is refused, and what was acknowledged is there."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from keptwork.audit import verify
from keptwork.core.lifecycles import JOB
from keptwork.maintenance import backups
from keptwork.store import open_store
from tests.support.clerk import Clerk, clerk

pytestmark = pytest.mark.acceptance

Way = Callable[[Clerk, Path, Path], None]


def restarted_after_a_kill(one: Clerk, file: Path, copy: Path) -> None:
    one.kill9()
    copy.symlink_to(file)


def moved_with_its_log(one: Clerk, file: Path, copy: Path) -> None:
    one.kill9()
    for part in ("", "-wal", "-shm"):
        shutil.move(f"{file}{part}", f"{copy}{part}")


def by_keptwork_backup(_: Clerk, file: Path, copy: Path) -> None:
    asyncio.run(backups.back_up(f"sqlite:///{file}", copy))


def by_keptwork_restore(one: Clerk, file: Path, copy: Path) -> None:
    by_keptwork_backup(one, file, copy.with_name("backup.db"))
    asyncio.run(backups.restore(f"sqlite:///{copy}", copy.with_name("backup.db")))


def by_vacuum_into(_: Clerk, file: Path, copy: Path) -> None:
    db = apsw.Connection(str(file))
    db.execute("VACUUM INTO ?", (str(copy),))
    db.close()


def by_the_backup_api(_: Clerk, file: Path, copy: Path) -> None:
    into, out_of = apsw.Connection(str(copy)), apsw.Connection(str(file))
    with into.backup("main", out_of, "main") as backup:
        backup.step(-1)
    into.close()
    out_of.close()


def by_a_volume_snapshot(one: Clerk, file: Path, copy: Path) -> None:
    """All files as of one moment, in which no process can write."""
    os.kill(one.process.pid, signal.SIGSTOP)
    for part in ("", "-wal", "-shm", "-turn"):
        shutil.copy(f"{file}{part}", f"{copy}{part}")
    os.kill(one.process.pid, signal.SIGCONT)


WAYS = [
    *(restarted_after_a_kill, moved_with_its_log, by_keptwork_backup, by_keptwork_restore, by_vacuum_into),
    *(by_the_backup_api, by_a_volume_snapshot),
]


@pytest.mark.parametrize("way", WAYS)
def test_file_that_comes_back_has_every_acknowledged_job(sqlite_copy, tmp_path, way):
    copy = tmp_path / "copy.db"
    with clerk(sqlite_copy) as one:
        one.enqueue(20)
        acknowledged = one.enqueue(20)
        way(one, Path(sqlite_copy.removeprefix("sqlite:///")), copy)
    assert asyncio.run(verified_jobs(f"sqlite:///{copy}")) == acknowledged == 40
    with clerk(f"sqlite:///{copy}") as again:
        again.enqueue(1)
        again.close()
    assert asyncio.run(verified_jobs(f"sqlite:///{copy}")) == 41


async def verified_jobs(url: str) -> int:
    store = await open_store(url, create=False)
    try:
        assert (await verify.verify(store)).clean
        return (await store.counts(JOB))[0]
    finally:
        await store.close()


def test_file_moved_without_its_log_opens_as_of_its_last_checkpoint(sqlite_copy, tmp_path):
    """A whole database of an earlier moment; the log stays where it was, and with it what is missing here."""
    file, moved = Path(sqlite_copy.removeprefix("sqlite:///")), tmp_path / "moved.db"
    with clerk(sqlite_copy) as one:
        one.enqueue(10)
        one.close()
    with clerk(sqlite_copy) as one:
        one.enqueue(5)
    shutil.move(file, moved)
    assert asyncio.run(verified_jobs(f"sqlite:///{moved}")) == 10
    assert Path(f"{file}-wal").stat().st_size
    shutil.move(f"{file}-wal", f"{moved}-wal")
    assert asyncio.run(verified_jobs(f"sqlite:///{moved}")) == 15
