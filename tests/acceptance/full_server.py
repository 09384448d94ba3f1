"""PostgreSQL on a disk that runs full under load and has room again after a while.

Usage: TMPDIR=SMALL_DISK python -m tests.acceptance.full_server WORKERS ROUNDS. Prints, as JSON, what became of it.
Where the log of writes cannot grow, PostgreSQL stops altogether; then it is started again once there is room, as an
operator would.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.acceptance.chaos import Stage, stage, until
from tests.acceptance.feeder import Feeder, back_at_work
from tests.support import postgres_server
from tests.support.postgres_server import PostgresServer, SqlFailed

BLOCK = b"x" * (1 << 20)
LONGEST_WORK = 0.05
FULL_SECONDS = 2.0
SMALL_LOG = {"max_wal_size": "32MB", "min_wal_size": "32MB", "checkpoint_timeout": "30s"}


def fill_disk(ballast: Path) -> None:
    """To the last block."""
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(BLOCK)


def answers(server: PostgresServer) -> bool:
    try:
        return server.superuser_sql("SELECT 1") == "1"
    except SqlFailed:
        return False


def run_full(on: Stage, server: PostgresServer, feeder: Feeder) -> tuple[bool, list[float]]:
    """Whether the server had to be started again, and how long each worker took to work again."""
    ballast, before = server.folder / "ballast", feeder.refusals.total()
    fill_disk(ballast)
    until(lambda: feeder.refusals.total() > before)
    time.sleep(FULL_SECONDS)
    ballast.unlink()
    stopped = not until(lambda: answers(server), patience=5)
    if stopped:
        server.restart()
    return stopped, back_at_work(on)


def main(workers: int, rounds: int) -> None:
    folder = tempfile.gettempdir()
    with postgres_server.start(settings=SMALL_LOG) as server, stage(server.create_database(), seed=13) as on:
        assert str(server.folder).startswith(folder)
        on.fleet.start(workers)
        stops, took = 0, list[float]()
        with Feeder(on, 500, LONGEST_WORK) as feeder:
            until(lambda: len({delivery.pid for delivery in list(on.sink.deliveries)}) == workers)
            for _ in range(rounds):
                stopped, seconds = run_full(on, server, feeder)
                stops, took = stops + stopped, took + seconds
        on.wait_until_done()
        died = len(on.fleet.bury_dead())
        found = on.examine()
    told = {"wrong": found.wrong, "died": died, "stops": stops, "longest": max(took), "refusals": feeder.refusals}
    print(json.dumps({**told, "figures": str(found)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
