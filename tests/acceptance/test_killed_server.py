"""A PostgreSQL server killed with -9 again and again under load.

Nothing acknowledged is lost, no effect is doubled, and workers are back at work soon after the server is.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.feeder import Feeder, back_at_work
from tests.support import postgres_server
from tests.support.postgres_server import PostgresServer

RECONNECT_SECONDS = 10.0
LONGEST_WORK = 0.1

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the server's processes in /proc")

# Commits are acknowledged while they are still in the server's memory, which dies with it.
ACKNOWLEDGES_EARLY = {"synchronous_commit": "off", "wal_writer_delay": "10s", "wal_writer_flush_after": "100MB"}


def kill_everyone(server: PostgresServer) -> None:
    """The postmaster first, so that it starts nobody anew; then all it had started."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    server.kill9()
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)


def crash(on: Stage, server: PostgresServer) -> list[float]:
    """Kills the server and brings it back; how long each worker then took to begin a job that was not there before."""
    kill_everyone(server)
    time.sleep(on.chance.uniform(0, 1))
    server.restart()
    return back_at_work(on)


def check(on: Stage, server: PostgresServer, workers: int, kills: int, jobs: int, longest_peace: float) -> None:
    on.fleet.start(workers)
    took: list[float] = []
    with Feeder(on, jobs, LONGEST_WORK) as feeder:
        until(lambda: len({delivery.pid for delivery in list(on.sink.deliveries)}) == workers)
        for _ in range(kills):
            time.sleep(on.chance.uniform(0.1, longest_peace))
            took += crash(on, server)
    on.wait_until_done()
    died = on.fleet.bury_dead()
    found = on.examine()
    print(
        f"\n{workers} workers, {kills} kills of the server, {feeder.refusals.total()} calls of the client refused, "
        f"workers back at work after {sorted(took)[int(len(took) * 0.99)]:.2f} s (p99; longest {max(took):.2f} s), "
        f"{found}"
    )
    assert found.wrong == []
    assert died == []
    assert feeder.refusals, "no kill came while jobs were being enqueued"
    assert max(took) <= RECONNECT_SECONDS


@needs_proc
@pytest.mark.timeout(120)
def test_killing_the_server_twice_loses_and_doubles_nothing() -> None:
    with postgres_server.start() as server, stage(server.create_database(), seed=10) as on:
        check(on, server, workers=2, kills=2, jobs=300, longest_peace=0.5)


@needs_proc
@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_killing_the_server_20_times_loses_and_doubles_none_of_20000_jobs() -> None:
    with postgres_server.start(durable=True) as server, stage(server.create_database(), seed=11) as on:
        check(on, server, workers=4, kills=20, jobs=20_000, longest_peace=5)


@needs_proc
@pytest.mark.timeout(120)
def test_a_server_that_acknowledges_before_it_has_written_is_caught_by_the_same_check() -> None:
    with (
        postgres_server.start(settings=ACKNOWLEDGES_EARLY) as server,
        stage(server.create_database(), seed=12) as on,
    ):
        server.superuser_sql("CHECKPOINT")  # the tables are to survive, so that only the work is lost
        on.feed(100, LONGEST_WORK)
        kill_everyone(server)
        server.restart()
        found = on.examine()
    print(f"\nacknowledged early: {found}")
    assert any(lost.endswith("is gone") for lost in found.lost)
