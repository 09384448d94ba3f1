"""What a real worker process (`detent work`) weighs after 10,000 no-op jobs, and whether it has grown after 100,000.

Up to about 20,000 jobs the page caches of SQLite fill (4 MB to write with, 2 MB for each reader); a leak shows later.
"""

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.history import database
from detent.store import NewJob, open_store

MOST_MB = 80.0
MOST_GROWTH = 0.04
FEW, WARM, MANY = 10_000, 20_000, 100_000
AT_ONCE = 5_000
SETTLES_WITHIN = 300.0


class Weight(NamedTuple):
    """Memory of a process in MB: what it has now, and the most it ever had."""

    now: float
    most: float

    @classmethod
    def of(cls, pid: int) -> "Weight":
        fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return cls(*(int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")))


def measure(seconds: float, rounds: int) -> bool:
    """Prints the table; whether a worker is as light as it should be on both stores, and stays so."""
    after = [f"after {count:,}, MB" for count in (FEW, WARM, MANY)]
    table = Table("store", *after, f"since {WARM:,}", "most, MB", title="A worker's memory")
    for column in table.columns[1:]:
        column.justify = "right"
    fits = True
    for store in ("sqlite", "postgres"):
        with database(store) as url:
            few, warm, many = weighed(url)
        growth = many.now / warm.now - 1
        fits = fits and few.now <= MOST_MB and many.most <= MOST_MB and growth <= MOST_GROWTH
        weights = [f"{weight.now:.1f}" for weight in (few, warm, many)]
        table.add_row(store, *weights, f"{growth:+.1%}", f"{many.most:.1f}")
    Console().print(table)
    return fits


def weighed(url: str) -> list[Weight]:
    """A worker's weight after few jobs, once it is warm, and after many."""
    command = [sys.executable, "-m", "detent", "work", "bench.noop:app", "--db", url]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        weights = []
        for count in (FEW, WARM - FEW, MANY - WARM):
            asyncio.run(settled(url, count))
            weights.append(Weight.of(worker.pid))
        return weights
    finally:
        worker.terminate()
        worker.wait()


async def settled(url: str, count: int) -> None:
    """Enqueues that many jobs, and waits until none is left."""
    store = await open_store(url)
    for first in range(0, count, AT_ONCE):
        await store.enqueue([NewJob("noop")] * min(AT_ONCE, count - first))
    deadline = time.monotonic() + SETTLES_WITHIN
    while any(queue.jobs.keys() - {"succeeded"} for queue in await store.queues(1)):
        assert time.monotonic() < deadline, "the worker does not get on"
        await asyncio.sleep(0.5)
    await store.close()
