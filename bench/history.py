"""A long past must not slow the queue down: one worker drains no-op jobs, once with a short past, once with a long one.

Short: 10,000 finished jobs and only what is drained in the queue. Long: 1,000,000 finished jobs, four million events,
and 100,000 queued. Both run turn by turn, so that the machine's mood is in both; the ratio of the medians counts.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import past
from keptwork.store import open_store
from tests.support import postgres_server

MARK = 0.80
DRAINED = 30_000
SHORT, LONG = (10_000, DRAINED), (1_000_000, 100_000)


def measure(seconds: float, rounds: int) -> bool:
    """Prints the table; whether a long past costs less than the mark allows on both stores."""
    table = Table("store", "short past, jobs/s", "long past, jobs/s", "ratio", title="Drain by one worker process")
    for column in table.columns[1:]:
        column.justify = "right"
    ratios: list[float] = []
    for store in ("sqlite", "postgres"):
        with database(store, SHORT[0]) as short, database(store, LONG[0]) as long:
            rates = [(drain(short, SHORT[1]), drain(long, LONG[1])) for _ in range(rounds)]
        before, after = (float(statistics.median(column)) for column in zip(*rates, strict=True))
        ratios.append(after / before)
        table.add_row(store, f"{before:,.0f}", f"{after:,.0f}", f"{after / before:.0%}")
        print(f"{store}: {after / before:.0%} of {before:,.0f} jobs/s", file=sys.stderr)
    Console().print(table)
    return min(ratios) >= MARK


@contextmanager
def database(store: str, finished: int = 0) -> Iterator[str]:
    """A migrated database with that many finished jobs; PostgreSQL with fsync on, as a user would have it."""
    now_us = time.time_ns() // 1000
    if store == "sqlite":
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
            url = f"sqlite:///{folder}/bench.db"
            asyncio.run(_migrated(url))
            if finished:
                past.fill_sqlite(f"{folder}/bench.db", finished, now_us)
            yield url
        return
    with postgres_server.start(durable=True) as server:
        url = server.create_database()
        asyncio.run(_migrated(url))
        if finished:
            past.fill_postgres(server, url, finished, now_us)
            server.superuser_sql("VACUUM (ANALYZE) jobs, events", url.rpartition("/")[2])
        yield url


async def _migrated(url: str) -> None:
    await (await open_store(url)).close()


def drain(url: str, queued: int) -> float:
    """Jobs per second of one worker that settles some of a queue of this length."""
    asyncio.run(past.queue_up(url, queued))
    command = [sys.executable, "-m", "bench.drain", url, str(DRAINED)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
