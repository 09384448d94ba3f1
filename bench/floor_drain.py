"""The floor under a drain: the two statements a worker lives by, claim and settle, issued straight through the driver.

One connection, one batch after the other, no handlers. The statements are the product's own, from its catalogue or as
the other floors have them. Usage: python -m bench.floor_drain URL WORKER BATCH SECONDS. Prints jobs per second.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg

from bench import floor_postgres, floor_sqlite
from keptwork.store import NewJob, open_store
from keptwork.store.dialect import POSTGRES, SQLITE
from keptwork.store.statements import Catalogue

JOBS_AHEAD = 20_000
LIST = 1000

Drain = Callable[[], Awaitable[int]]


async def main(url: str, worker: int, batch: int, seconds: float) -> None:
    connect = on_postgres if url.startswith("postgres") else on_sqlite
    drain = await connect(url, worker, batch)
    done, spent = 0, 0.0
    while spent < seconds:
        await fill(url)
        began = time.perf_counter()
        while settled := await drain():
            done += settled
        spent += time.perf_counter() - began
    print(done / spent)


async def fill(url: str) -> None:
    store = await open_store(url)
    for _ in range(0, JOBS_AHEAD, LIST):
        await store.enqueue([NewJob("noop")] * LIST)
    await store.close()


async def on_postgres(url: str, worker: int, batch: int) -> Drain:
    connection = await asyncpg.connect(url, server_settings=floor_postgres.SETTINGS)
    claim = Catalogue(POSTGRES)["claim_and_start"]
    values = claiming(worker, batch) | {"queues": ["default"], "turn": 0, "without": None}

    async def drain() -> int:
        jobs = await connection.fetch(claim.sql, *[values[name] for name in claim.parameters])
        if jobs:
            alike = (f"w:{worker}", None, None, "running", worker, None, 1)
            each = [job[0] for job in jobs], [job[3] for job in jobs], [job[4] for job in jobs], [None] * len(jobs)
            assert len(await connection.fetch(floor_postgres.SUCCEED, *alike, *each)) == len(jobs)
        return len(jobs)

    return drain


async def on_sqlite(url: str, worker: int, batch: int) -> Drain:
    db = floor_sqlite.connect(url.removeprefix("sqlite:///"))
    claim = Catalogue(SQLITE)["claim_and_start"]

    async def drain() -> int:
        db.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1000
        ((tenant, _, _, _),) = db.execute(floor_sqlite.QUEUE_NOW, ("default",)).fetchall()
        ((priority,),) = db.execute(floor_sqlite.NEXT_PRIORITY, ("default", tenant, 1 << 31)).fetchall()
        due = db.execute(floor_sqlite.DUE, ("default", tenant, priority, now, batch)).fetchall()
        values = claiming(worker, batch) | {"now": now, "ids": json.dumps([row[2] for row in due])}
        jobs = db.execute(claim.sql, [values[name] for name in claim.parameters]).fetchall()
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        rows = json.dumps([(job[4], job[0], job[3], None) for job in jobs])
        given = (rows, time.time_ns() // 1000, f"w:{worker}", None, None, "running", worker, None, 1)
        assert len(db.execute(floor_sqlite.SUCCEED, given).fetchall()) == len(jobs)
        db.execute("COMMIT")
        return len(jobs)

    return drain


def claiming(worker: int, batch: int) -> dict[str, Any]:
    values = {"worker": worker, "limit": batch, "tenant_id": None, "actor": f"w:{worker}", "claim_id": 1}
    return values | {"lease_us": floor_postgres.LEASE_US}


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
