"""A process that keeps a database busy: whole lives of jobs, in batches, until its standard input ends.

    python -m tests.store.busy_writer URL

After each batch it prints how many jobs have been acknowledged as succeeded so far.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from keptwork.core.lifecycles import JOB, WORKER, decide, insist
from keptwork.store import Job, NewJob, Store, open_store

BATCH = 20


async def live(store: Store, worker: int, turn: int) -> int:
    """One batch from enqueue to its end; every fifth new job fails on the way and is retried."""
    await store.enqueue([NewJob("busy") for _ in range(BATCH)])
    claimed = await store.claim(worker, ["default"], BATCH, 60_000_000, claim_id=turn)
    await move(store, claimed, "start")
    again = [job for job in claimed[::5] if job.attempts == 0]
    await move(store, again, "retry", delay_us=0)
    done = [job for job in claimed if job not in again]
    await move(store, done, "succeed")
    return len(done)


async def move(store: Store, jobs: list[Job], trigger: str, **values: int) -> None:
    now = await store.now()
    rows = {row["id"]: row for row in await store.rows(JOB, [job.id for job in jobs])}
    decided = [insist(decide(JOB, rows[job.id], trigger, now=now, token=job.token)) for job in jobs]
    assert await store.apply([change._replace(values=values) for change in decided]) == []


async def work(url: str) -> None:
    store = await open_store(url)
    worker = await store.create(WORKER, name="busy", incarnation="1", workspace_id="default")
    asked_to_end = threading.Thread(target=sys.stdin.read, daemon=True)
    asked_to_end.start()
    done = turn = 0
    while asked_to_end.is_alive():
        turn += 1
        done += await live(store, worker, turn)
        print(done, flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
