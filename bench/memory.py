"""What a real worker process (`keptwork work`) weighs after 10,000 no-op jobs, and whether it has grown after 100,000.

Among them is one job that takes over a second, because then the keeper of leases opens its own connections, once and
for good; a worker weighed without them would seem to grow when a busy machine makes a job last that long.
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
from keptwork.store import NewJob, open_store

MOST_MB = 80.0
MOST_GROWTH = 0.10  # what an allocator keeps varies by a few MB; a leak of 60 bytes a job would be over it
FEW, MANY = 10_000, 100_000
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
    table = Table("store", f"after {FEW:,}, MB", f"after {MANY:,}, MB", "growth", "most, MB", title="A worker's memory")
    for column in table.columns[1:]:
        column.justify = "right"
    fits = True
    for store in ("sqlite", "postgres"):
        with database(store) as url:
            few, many = weighed(url)
        growth = many.now / few.now - 1
        fits = fits and few.now <= MOST_MB and many.most <= MOST_MB and growth <= MOST_GROWTH
        table.add_row(store, f"{few.now:.1f}", f"{many.now:.1f}", f"{growth:+.1%}", f"{many.most:.1f}")
    Console().print(table)
    return fits


def weighed(url: str) -> list[Weight]:
    """A worker's weight after few jobs, and after many."""
    command = [sys.executable, "-m", "keptwork", "work", "bench.noop:app", "--migrate", "--db", url]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        weights = []
        for count in (FEW, MANY - FEW):
            asyncio.run(settled(url, count))
            weights.append(Weight.of(worker.pid))
        return weights
    finally:
        worker.terminate()
        worker.wait()


async def settled(url: str, count: int) -> None:
    """Enqueues that many jobs and one that takes a while, and waits until none is left."""
    store = await open_store(url)
    await store.enqueue([NewJob("nap")])
    for first in range(0, count, AT_ONCE):
        await store.enqueue([NewJob("noop")] * min(AT_ONCE, count - first))
    deadline = time.monotonic() + SETTLES_WITHIN
    while any(queue.jobs.keys() - {"succeeded"} for queue in await store.queues(1)):
        assert time.monotonic() < deadline, "the worker does not get on"
        await asyncio.sleep(0.5)
    await store.close()
