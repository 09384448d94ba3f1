"""A claim must not wait for retention: how long claiming and settling one job takes, alone and while 100,000 jobs are
being deleted, or 5,000 flows with their steps."""

import asyncio
import statistics
import time
from itertools import count

from rich.console import Console
from rich.table import Table

from bench.history import database
from bench.product import LEASE_US, decided
from keptwork.core.lifecycles import WORKER
from keptwork.maintenance import retention
from keptwork.store import NewJob, Store, open_store
from tests.support.ended_flows import ended_flows

ROWS = 130_000  # of which those older than the age below go: 100,000
OLDER_THAN = "3d"
FLOWS, STEPS = 5_000, 5
QUEUED = 5_000
SAMPLES = 300
MOST_EXTRA_MS = 10.0

_claims = count(1)


def measure(seconds: float, rounds: int) -> bool:
    """Prints the table; whether a claim beside a sweep takes at most a few milliseconds longer, on both stores."""
    table = Table("store", "", "p50, ms", "p95, ms", "p99, ms", "rows/s", title="Claim and settle one job")
    for column in table.columns[2:]:
        column.justify = "right"
    fits = True
    for store in ("sqlite", "postgres"):
        for what, jobs, flows in (("jobs", ROWS, 0), ("flows", 0, FLOWS)):
            with database(store, jobs) as url:
                alone, beside, rate = asyncio.run(compare(url, flows))
            table.add_row(store, "alone", *_quantiles(alone), "")
            table.add_row("", f"beside a sweep of {what}", *_quantiles(beside), f"{rate:,.0f}")
            fits = fits and statistics.median(beside) - statistics.median(alone) <= MOST_EXTRA_MS
    Console().print(table)
    return fits


async def compare(url: str, flows: int) -> tuple[list[float], list[float], float]:
    """Milliseconds of each claim alone and beside a sweep in a store of its own, and what that deleted in a second:
    jobs, or flows with all their steps."""
    store, sweeper = await open_store(url), await open_store(url)
    await ended_flows(sweeper, flows, STEPS)
    await store.enqueue([NewJob("noop")] * QUEUED)
    worker = await store.create(WORKER, name="bench", incarnation="bench", workspace_id="bench")
    alone = [await timed(store, worker) for _ in range(SAMPLES)]
    began = time.perf_counter()
    sweep = asyncio.create_task(retention.prune(sweeper, 1, "0s" if flows else OLDER_THAN))
    beside: list[float] = []
    while not sweep.done() and len(beside) < QUEUED - SAMPLES:
        beside.append(await timed(store, worker))
    rate = (await sweep).rows / (time.perf_counter() - began)
    await store.close()
    await sweeper.close()
    return alone, beside, rate


async def timed(store: Store, worker: int) -> float:
    began = time.perf_counter()
    (job,) = await store.claim(worker, ["default"], 1, LEASE_US, claim_id=next(_claims), start=True)
    assert not await store.apply([decided(job, "succeed", f"w:{worker}")])
    took = (time.perf_counter() - began) * 1000
    await asyncio.sleep(0.002)
    return took


def _quantiles(samples: list[float]) -> list[str]:
    cuts = statistics.quantiles(samples, n=100)
    return [f"{cuts[place - 1]:.1f}" for place in (50, 95, 99)]
