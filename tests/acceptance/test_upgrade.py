"""An upgrade under load: workers of the old release go on while the new one migrates, and beside its workers after.

The new release is a copy of the package with one more migration. It makes the guards anew, and on PostgreSQL changes
the busiest tables.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from keptwork.store.migrations import LOCK_KEY, fingerprint, newest
from keptwork.store.postgres import store as postgres
from keptwork.store.sqlite import leftover_log, store
from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.feeder import Feeder
from tests.acceptance.fleet import Fleet
from tests.store.hands import PostgresHand
from tests.support import command

LONGEST_WAIT = 1.0
LONGEST_WORK = 0.1
READER_SECONDS = 15.0

WAITS = f"""SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 AS longest FROM pg_locks
WHERE NOT granted AND pid NOT IN (SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32) | objid::bigint = {LOCK_KEY})"""

GUARDS = f"--: guards {fingerprint()}\n"
COLUMNS = "ALTER TABLE jobs ADD COLUMN later int;\n\nALTER TABLE events ADD COLUMN later int;\n"


class Watch:
    """Looks, in a thread, how long anybody but the migration waits for a lock."""

    def __init__(self, url: str) -> None:
        self.longest = 0.0
        self._url = url
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        with closing(PostgresHand(self._url)) as hand:
            while not self._enough.wait(0.01):
                self.longest = max(self.longest, hand.rows(WAITS)[0]["longest"])

    def close(self) -> None:
        self._enough.set()
        self._thread.join()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """The folder of the next release."""
    shutil.copytree(Path(command.SOURCE) / "keptwork", tmp_path / "keptwork")
    schema = tmp_path / "keptwork" / "store" / "schema"
    (schema / f"{newest() + 1:04}_later.sql").write_text(GUARDS)
    (schema / f"{newest() + 1:04}_later.postgres.sql").write_text(COLUMNS)
    return tmp_path


@contextmanager
def upgraded(on: Stage, release: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Workers of the new release; what examines the database afterwards takes it for one of its own."""
    for module in (postgres, store, leftover_log):
        monkeypatch.setattr(module, "newest", lambda: newest() + 1)
    fleet = Fleet(on.url, on.sink.port)
    fleet._environment["PYTHONPATH"] = f"{release}:{fleet._environment['PYTHONPATH']}"
    with closing(fleet):
        yield fleet


def migrating(on: Stage, release: Path) -> subprocess.Popen[str]:
    return command.start("migrate", "--db", on.url, PYTHONPATH=str(release))


@pytest.mark.chaos
@pytest.mark.timeout(300)
def test_old_workers_never_wait_a_second_for_a_migration_beside_a_long_reader_and_lose_no_job(
    postgres_copy: str, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(postgres_copy, seed=42) as on, closing(PostgresHand(postgres_copy)) as reader:
        on.fleet.start(4)
        with Feeder(on, 2_000, LONGEST_WORK):
            until(lambda: len({delivery.pid for delivery in list(on.sink.deliveries)}) == 4)
            with closing(Watch(postgres_copy)) as watch:
                reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
                held = reader.rows("SELECT pg_backend_pid() AS pid, (SELECT count(*) FROM jobs, events)")[0]["pid"]
                first, process, began = len(on.sink.deliveries), migrating(on, release), time.monotonic()
                time.sleep(READER_SECONDS)
                meanwhile, unfinished = len(on.sink.deliveries) - first, process.poll() is None
                reader.run("ROLLBACK")
                said = process.communicate(timeout=60)[1].splitlines()
                took = time.monotonic() - began
            with upgraded(on, release, monkeypatch) as new:
                new.start(2)
                pids = {member.pid for member in new.members}
                until(lambda: pids <= {delivery.pid for delivery in list(on.sink.deliveries)})
                died = [*on.fleet.bury_dead(), *new.bury_dead()]
        on.wait_until_done()
        found = on.examine()
    print(
        f"\nmigrated after {took:.1f} s, of which a reader held {READER_SECONDS:.0f} s; {meanwhile:,} effects "
        f"meanwhile, longest wait for a lock {watch.longest:.2f} s; {len(on.ids):,} jobs by 6 workers: {found}"
    )
    assert unfinished
    assert meanwhile > 100
    assert process.returncode == 0
    assert any(f"waiting for session {held} (" in line for line in said)
    assert watch.longest < LONGEST_WAIT
    assert died == []
    assert found.wrong == []


@pytest.mark.timeout(120)
def test_old_and_new_workers_side_by_side_over_a_migration_under_load_lose_and_double_nothing(
    database_url: str, release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stage(database_url, seed=43) as on:
        on.fleet.start(1)
        with Feeder(on, 100, LONGEST_WORK):
            until(lambda: len(on.sink.deliveries) > 10)
            process = migrating(on, release)
            assert process.communicate(timeout=60)[0].endswith("later\n")
            with upgraded(on, release, monkeypatch) as new:
                (member,) = new.start(1)
                until(lambda: member.pid in {delivery.pid for delivery in list(on.sink.deliveries)})
                died = [*on.fleet.bury_dead(), *new.bury_dead()]
        on.wait_until_done()
        found = on.examine()
    print(f"\n{len(on.ids):,} jobs, a migration among them: {found}")
    assert died == []
    assert found.wrong == []
