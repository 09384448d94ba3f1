"""What limits cost: the drain rate of one worker, with and without them, turn by turn.

Queues without a limit must not notice that others have some. Jobs with a limit, for all of a kind or for each of many
values, are to be drained at half the rate at least.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.lifecycle import prepared
from keptwork import Keptwork
from keptwork.context import Context

JOBS = 20_000
KEYS = 200
SHAPES = ("plain", "beside limits", "limit=1000", f"limit=5 per key, {KEYS} keys")
UNTOUCHED, HALF = 0.90, 0.50


def measure(seconds: float, rounds: int) -> bool:
    """Prints the table; whether both marks are reached on both stores."""
    table = Table("store", "jobs", "jobs/s", "of plain", title=f"Drain of {JOBS:,} jobs by one worker, with limits")
    for column in table.columns[2:]:
        column.justify = "right"
    reached = []
    for store in ("sqlite", "postgres"):
        rates = {shape: statistics.median(found) for shape, found in drained(store, rounds).items()}
        for shape, mark in zip(SHAPES, (1, UNTOUCHED, HALF, HALF), strict=True):
            share = rates[shape] / rates["plain"]
            reached.append(share >= mark)
            table.add_row(store, shape, f"{rates[shape]:,.0f}", f"{share:.0%}")
            print(f"{store}, {shape}: {share:.0%}", file=sys.stderr)
    Console().print(table)
    return all(reached)


def drained(store: str, rounds: int) -> dict[str, list[float]]:
    """The rates of each shape, each run in a process of its own on a fresh database."""
    rates: dict[str, list[float]] = {shape: [] for shape in SHAPES}
    for _ in range(rounds):
        for shape in SHAPES:
            with prepared(store) as (url, _):
                command = [sys.executable, "-m", "bench.limits", url, shape]
                rates[shape].append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return rates


async def main(url: str, shape: str) -> None:
    """Enqueues the jobs, then drains them; prints jobs per second."""
    shapes: dict[str, dict[str, Any]] = {
        "limit=1000": {"limit": 1000},
        f"limit=5 per key, {KEYS} keys": {"limit": 5, "per": "key"},
    }
    app, left = Keptwork(url), JOBS

    @app.job(**shapes.get(shape, {}))
    async def noop(ctx: Context, key: str) -> None:
        nonlocal left
        left -= 1
        if not left:
            app.stop()

    @app.job(limit=3, rate="10/s", queue="elsewhere")
    async def limited(ctx: Context) -> None: ...

    if shape == "beside limits":
        app.limit_queue("far", limit=3)
    else:
        del app.kinds["limited"]
    async with app:
        for begin in range(0, JOBS, 2000):
            await app.enqueue_many(noop, [{"key": str(number % KEYS)} for number in range(begin, begin + 2000)])
        if shape == "beside limits":
            await app.enqueue_many(limited, [{}] * 2000)
        began = time.perf_counter()
        await app.work(queues=["default"], until_idle=True)
        print(JOBS / (time.perf_counter() - began))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
