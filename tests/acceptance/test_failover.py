"""A server that dies for good under load, and its synchronous standby that takes its place.

Nothing that was acknowledged is lost and no effect is doubled; workers that know both addresses go on by themselves.
"""

from __future__ import annotations

import time

import pytest

from keptwork.store.postgres.store import PostgresStore
from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.feeder import Feeder, back_at_work
from tests.acceptance.test_killed_server import LONGEST_WORK, RECONNECT_SECONDS, kill_everyone, needs_proc
from tests.support import postgres_server
from tests.support.postgres_server import PostgresServer
from tests.support.second_server import promote, standby

CAUGHT_UP = "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication"


def both(url: str, second: PostgresServer) -> str:
    """The same database under the addresses of both servers."""
    address, slash, name = url.rpartition("/")
    return f"{address},127.0.0.1:{second.port}{slash}{name}"


def check(on: Stage, first: PostgresServer, second: PostgresServer, workers: int, jobs: int, peace: float) -> None:
    on.fleet.start(workers)
    with Feeder(on, jobs, LONGEST_WORK) as feeder:
        until(lambda: len({delivery.pid for delivery in list(on.sink.deliveries)}) == workers)
        time.sleep(on.chance.uniform(0.1, peace))
        acknowledged = len(on.ids)
        kill_everyone(first)
        time.sleep(on.chance.uniform(0, 1))
        promote(second)
        took = back_at_work(on)
    on.wait_until_done()
    died, found = on.fleet.bury_dead(), on.examine()
    print(
        f"\n{workers} workers, {acknowledged:,} of {len(on.ids):,} jobs before the failover, "
        f"{feeder.refusals.total()} calls of the client refused, all at work again after {max(took):.2f} s, {found}"
    )
    assert found.wrong == []
    assert died == []
    assert 0 < acknowledged < len(on.ids)  # the rest was enqueued at the second server, for the first is dead
    assert max(took) <= RECONNECT_SECONDS


@needs_proc
@pytest.mark.timeout(180)
def test_a_failover_to_a_synchronous_standby_loses_and_doubles_nothing() -> None:
    with (
        postgres_server.start() as first,
        standby(first) as second,
        stage(both(first.create_database(), second), seed=31) as on,
    ):
        check(on, first, second, workers=2, jobs=300, peace=0.5)


@needs_proc
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_five_failovers_with_8_workers_lose_and_double_none_of_4000_jobs_each(seed: int) -> None:
    with (
        postgres_server.start(durable=True) as first,
        standby(first) as second,
        stage(both(first.create_database(), second), seed=32 + seed) as on,
    ):
        check(on, first, second, workers=8, jobs=4_000, peace=5)


# --- a standby that hears nothing any more, and a caller that does not wait for it

SHORT_PATIENCE = 0.3
GIVEN_UP = 4
"""So often the caller gives a call up before the primary dies."""


def cut_off(first: PostgresServer, second: PostgresServer) -> None:
    """From now on the standby receives nothing."""
    second.superuser_sql("ALTER SYSTEM SET primary_conninfo = ''")
    second.superuser_sql("SELECT pg_reload_conf()")
    until(lambda: first.superuser_sql("SELECT count(*) FROM pg_stat_replication") == "0", 30)


def lost_behind_a_deaf_standby(on: Stage, first: PostgresServer, second: PostgresServer, workers: int) -> list[str]:
    """Cut the standby off under load, let the primary die, and return what is wrong with the acknowledged jobs."""
    on.fleet.start(workers)
    with Feeder(on, 0, LONGEST_WORK, SHORT_PATIENCE) as feeder:
        until(lambda: len({delivery.pid for delivery in list(on.sink.deliveries)}) == workers)
        cut_off(first, second)
        feeder.is_eager = True
        before, gave_up = len(on.ids), feeder.refusals["TimeoutError"]
        until(lambda: feeder.refusals["TimeoutError"] >= gave_up + GIVEN_UP or len(on.ids) > before + 50)
        acknowledged, feeder.is_eager = len(on.ids), False
        kill_everyone(first)
        second.superuser_sql("SELECT pg_promote()")
        back_at_work(on)
    on.wait_until_done()
    died, found = on.fleet.bury_dead(), on.examine()
    print(
        f"\n{acknowledged - before} of {acknowledged:,} jobs acknowledged behind the standby, "
        f"{feeder.refusals['TimeoutError']} calls given up, {found}"
    )
    assert died == []
    assert 0 < before <= acknowledged
    return found.wrong


@needs_proc
@pytest.mark.timeout(180)
def test_failover_behind_a_deaf_standby_loses_nothing_that_a_repeated_call_was_told() -> None:
    with (
        postgres_server.start() as first,
        standby(first) as second,
        stage(both(first.create_database(), second), seed=41) as on,
    ):
        assert lost_behind_a_deaf_standby(on, first, second, workers=2) == []


@needs_proc
@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(10))
def test_ten_failovers_behind_a_deaf_standby_lose_nothing_with_8_workers(seed: int) -> None:
    with (
        postgres_server.start(durable=True) as first,
        standby(first) as second,
        stage(both(first.create_database(), second), seed=42 + seed) as on,
    ):
        assert lost_behind_a_deaf_standby(on, first, second, workers=8) == []


@needs_proc
@pytest.mark.timeout(180)
def test_twin_that_answers_without_the_record_loses_acknowledged_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None: ...

    monkeypatch.setattr(PostgresStore, "confirm", nothing)  # of the caller; workers are processes of their own
    with (
        postgres_server.start() as first,
        standby(first) as second,
        stage(both(first.create_database(), second), seed=43) as on,
    ):
        wrong = lost_behind_a_deaf_standby(on, first, second, workers=2)
    assert any(lost.endswith("is gone") for lost in wrong)


@needs_proc
@pytest.mark.timeout(180)
def test_a_standby_that_was_left_behind_is_caught_by_the_same_check() -> None:
    with (
        postgres_server.start() as first,
        standby(first, synchronous=False) as second,
        stage(both(first.create_database(), second), seed=33) as on,
    ):
        on.feed(50, LONGEST_WORK)
        until(lambda: first.superuser_sql(CAUGHT_UP) == "t", 30)
        second.superuser_sql("ALTER SYSTEM SET primary_conninfo = ''")
        second.superuser_sql("SELECT pg_reload_conf()")
        until(lambda: first.superuser_sql("SELECT count(*) FROM pg_stat_replication") == "0", 30)
        on.feed(50, LONGEST_WORK)
        kill_everyone(first)
        promote(second)
        found = on.examine()
    print(f"\nleft behind: {found}")
    assert sum(lost.endswith("is gone") for lost in found.lost) == 50
