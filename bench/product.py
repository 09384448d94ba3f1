"""The product under measurement: the lifecycle of jobs through the store, as the worker will drive it.

Usage: python -m bench.product URL WORKER BATCH SECONDS. Prints jobs per second.
"""

import asyncio
import sys
import time

from keptwork.core.lifecycles import JOB, Change, decide, insist
from keptwork.store import Job, NewJob, Store, open_store

LEASE_US = 60_000_000


async def main(url: str, worker: int, batch: int, seconds: float) -> None:
    store = await open_store(url)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        await lifecycle(store, worker, batch)
        done += batch
    print(done / (time.perf_counter() - began))
    await store.close()


async def lifecycle(store: Store, worker: int, batch: int) -> None:
    await store.enqueue([NewJob("noop")] * batch)
    jobs = await store.claim(worker, ["default"], batch, LEASE_US, claim_id=1)
    assert len(jobs) == batch
    assert not await store.apply([decided(job, "start", f"w:{worker}") for job in jobs])
    for job in jobs:
        job.state, job.seq = "running", job.seq + 1
    assert not await store.apply([decided(job, "succeed", f"w:{worker}") for job in jobs])


def decided(job: Job, trigger: str, actor: str) -> Change:
    return insist(decide(JOB, job, trigger, token=job.token, actor=actor))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
