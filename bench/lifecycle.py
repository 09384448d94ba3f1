"""The full lifecycle of a job (enqueue, claim, start, succeed: four moves, four events), durable, beside its floor.

The floor is the same SQL issued straight through the driver. Both run turn by turn, each in a process of its own, on a
database of its own; the ratio of the medians is what counts, because the machine's mood is in both.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from keptwork.core.lifecycles import WORKER
from keptwork.store import open_store
from tests.support import postgres_server

BATCHES = (1, 10, 100)
MARK = 0.70


def measure(seconds: float, rounds: int) -> bool:
    """Prints the table; whether the product reaches the mark everywhere."""
    table = Table("store", "batch", "floor, jobs/s", "keptwork, jobs/s", "of the floor", title="Full job lifecycle")
    for column in table.columns[1:]:
        column.justify = "right"
    ratios = []
    for store, floor in (("sqlite", "bench.floor_sqlite"), ("postgres", "bench.floor_postgres")):
        for batch in BATCHES:
            bare, product = compare(store, floor, batch, seconds, rounds)
            ratios.append(product / bare)
            table.add_row(store, str(batch), f"{bare:,.0f}", f"{product:,.0f}", f"{product / bare:.0%}")
            print(f"{store} × {batch}: {product / bare:.0%}", file=sys.stderr)
    Console().print(table)
    return min(ratios) >= MARK


def compare(store: str, floor: str, batch: int, seconds: float, rounds: int) -> tuple[float, float]:
    """The medians of floor and product, run turn by turn."""
    rates: dict[str, list[float]] = {"floor": [], "product": []}
    with prepared(store) as (url, worker):
        target = url.removeprefix("sqlite:///") if store == "sqlite" else url
        for _ in range(rounds):
            rates["floor"].append(run(floor, target, worker, batch, seconds))
            rates["product"].append(run("bench.product", url, worker, batch, seconds))
    return statistics.median(rates["floor"]), statistics.median(rates["product"])


def run(module: str, target: str, worker: int, batch: int, seconds: float) -> float:
    command = [sys.executable, "-m", module, target, str(worker), str(batch), str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@contextmanager
def prepared(store: str) -> Iterator[tuple[str, int]]:
    """A migrated database with a worker in it; PostgreSQL with fsync on, as a user would have it."""
    if store == "sqlite":
        with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-") as folder:
            url = f"sqlite:///{folder}/bench.db"
            yield url, asyncio.run(_register(url))
        return
    with postgres_server.start(durable=True) as server:
        url = server.create_database()
        yield url, asyncio.run(_register(url))


async def _register(url: str) -> int:
    store = await open_store(url)
    worker = await store.create(WORKER, name="bench", incarnation="bench", workspace_id="bench")
    await store.close()
    return worker
