"""Backup drills: backups at random moments of work, restored wherever an operator may have to, and compared."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from keptwork.audit import verify
from keptwork.errors import SeesNoRows, StaleLog
from keptwork.maintenance import backups
from keptwork.store import open_store
from keptwork.store.upgrade_migrate import migrate
from tests.store.test_backup import Writer
from tests.support import postgres_server as postgres
from tests.support.postgres_server import PostgresServer

ROUNDS = pytest.mark.parametrize("rounds", [1, pytest.param(20, marks=[pytest.mark.chaos, pytest.mark.timeout(1800)])])


@pytest.fixture(autouse=True)
def programs(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{postgres_server.bin('')}:{os.environ['PATH']}")


class Taken(NamedTuple):
    """A backup, its counts, and how many jobs had been acknowledged as succeeded before it began and after its end."""

    file: Path
    rows: dict[str, int]
    before: int
    after: int


class Found(NamedTuple):
    """A restored database that an audit calls clean: its rows by table, and its succeeded jobs."""

    rows: dict[str, int]
    succeeded: int


def taken_at_work(url: str, folder: Path, rounds: int, seed: int) -> Iterator[Taken]:
    """Backups at random moments of a writer's work; the writer is killed at the end, wherever it is."""
    dice, writer = random.Random(seed), Writer(url)
    try:
        writer.count(batches=3)
        for number in range(rounds):
            time.sleep(dice.uniform(0, 0.3))
            file, before = folder / f"backup-{number}", writer.count()
            rows = asyncio.run(backups.back_up(url, file)).rows
            after = writer.count()
            yield Taken(file, {name.rpartition(".")[2]: count for name, count in rows.items()}, before, after)
    finally:
        writer._process.kill()
        writer._process.communicate()


async def examined(url: str) -> Found:
    store = await open_store(url, create=False)
    try:
        verdict = await verify.verify(store)
        assert verdict.clean, verdict.problems
        (row,) = await _fetch(store, "SELECT count(*) AS n FROM jobs WHERE state = 'succeeded'")
        (events,) = await _fetch(store, "SELECT count(*) AS n FROM events")
        (jobs,) = await _fetch(store, "SELECT count(*) AS n FROM jobs")
        return Found({"jobs": jobs["n"], "events": events["n"]}, row["n"])
    finally:
        await store.close()


async def _fetch(store, sql):
    async with store.transaction() as tx:
        return await tx.fetch(sql)


def fits(taken: Taken, found: Found) -> bool:
    """Whether what was restored is what was backed up, and that is of the moment of the backup."""
    same = all(found.rows[table] == taken.rows[table] for table in found.rows)
    return same and taken.before <= found.succeeded


def tell(what: str, taken: list[Taken]) -> None:
    """Show the figures of a drill under `make chaos`."""
    print(f"\n{what}; events: {[one.rows['events'] for one in taken]}")


@ROUNDS
def test_backups_of_a_file_at_work_restore_over_a_crashed_file_and_into_an_empty_place(sqlite_copy, tmp_path, rounds):
    taken = list(taken_at_work(sqlite_copy, tmp_path, rounds, seed=36))
    live = Path(sqlite_copy.removeprefix("sqlite:///"))
    crashed = [part for part in ("", "-wal", "-shm") if Path(f"{live}{part}").exists()]
    assert "-wal" in crashed
    for number, one in enumerate(taken):
        over = tmp_path / f"over-{number}.db"
        for part in crashed:
            shutil.copy(f"{live}{part}", f"{over}{part}")
        restored = asyncio.run(backups.restore(f"sqlite:///{over}", one.file))
        asyncio.run(backups.restore(f"sqlite:///{tmp_path}/empty-{number}.db", one.file))
        assert fits(one, asyncio.run(examined(f"sqlite:///{over}")))
        assert fits(one, asyncio.run(examined(f"sqlite:///{tmp_path}/empty-{number}.db")))
        last = asyncio.run(examined(f"sqlite:///{restored.aside}"))
        assert last.succeeded >= taken[-1].after, "the file that was set aside lost what was acknowledged"
    print(
        f"\n{rounds} backups of a file at work, {2 * rounds} restored: {[one.rows['events'] for one in taken]} events"
    )


@ROUNDS
def test_drill_catches_backups_that_are_copied_over_a_crashed_file(sqlite_copy, tmp_path, rounds):
    """The twin: `cp` leaves the old log. Each such restore is refused untouched, or its counts tell what it is."""
    taken = list(taken_at_work(sqlite_copy, tmp_path, rounds, seed=37))
    live, refused = Path(sqlite_copy.removeprefix("sqlite:///")), 0
    for number, one in enumerate(taken):
        over = tmp_path / f"over-{number}.db"
        for part in ("-wal", "-shm"):
            shutil.copy(f"{live}{part}", f"{over}{part}")
        shutil.copy(one.file, over)
        before = over.read_bytes()
        try:
            assert not fits(one, asyncio.run(examined(f"sqlite:///{over}")))
        except StaleLog:
            refused += 1
            assert over.read_bytes() == before
    print(f"\n{rounds} backups copied over a crashed file: {refused} refused, {rounds - refused} undone by the old log")


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    """Another cluster, with another owner, who may create nothing but databases."""
    with postgres.start(settings={"shared_buffers": "16MB"}) as server:
        server.superuser_sql("CREATE ROLE someone LOGIN CREATEDB PASSWORD 'else'")
        yield server


def under_another_owner(server: PostgresServer) -> str:
    name = f"drill_{os.urandom(4).hex()}"
    server.superuser_sql(f"CREATE DATABASE {name} OWNER someone")
    return server.url(name, "someone", "else")


@ROUNDS
def test_dumps_of_a_database_at_work_restore_here_and_in_another_cluster_under_another_owner(
    postgres_server, postgres_copy, cluster, tmp_path, rounds
):
    taken = list(taken_at_work(postgres_copy, tmp_path, rounds, seed=38))
    for one in taken:
        for target in (postgres_server.create_database(), under_another_owner(cluster)):
            restored = asyncio.run(backups.restore(target, one.file))
            assert fits(one, asyncio.run(examined(target)))
            assert ("keptwork_app does not exist" in restored.todo) == ("someone" in target)
            (postgres_server if "someone" not in target else cluster).drop_database(target)
    print(
        f"\n{rounds} dumps of a database at work, {2 * rounds} restored: {[one.rows['events'] for one in taken]} events"
    )


def test_restored_dump_grants_the_application_its_role_where_there_is_one(postgres_copy, cluster, tmp_path):
    (taken,) = taken_at_work(postgres_copy, tmp_path, 1, seed=39)
    cluster.superuser_sql("CREATE ROLE keptwork_app NOLOGIN; GRANT keptwork_app TO someone WITH ADMIN OPTION")
    try:
        target = under_another_owner(cluster)
        assert asyncio.run(backups.restore(target, taken.file)).todo == ""
        assert asyncio.run(_narrowed(target)) is None
        cluster.drop_database(target)
    finally:
        cluster.superuser_sql("DROP OWNED BY keptwork_app; DROP ROLE keptwork_app")


async def _narrowed(url: str) -> str | None:
    store = await open_store(url, create=False)
    try:
        return await store.cannot_narrow()
    finally:
        await store.close()


def test_drill_catches_a_dump_restored_by_hand_under_another_owner(postgres_copy, cluster, tmp_path):
    """The twin: policies name the old owner, so the new one would see an empty database, until they are made anew."""
    (taken,) = taken_at_work(postgres_copy, tmp_path, 1, seed=40)
    target = under_another_owner(cluster)
    by_hand = ["pg_restore", "--no-owner", "--no-privileges", "-d", target, str(taken.file)]
    subprocess.run(by_hand, capture_output=True, check=False)
    with pytest.raises(SeesNoRows):
        asyncio.run(examined(target))
    asyncio.run(migrate(target, guards=True))
    assert fits(taken, asyncio.run(examined(target)))
    cluster.drop_database(target)
