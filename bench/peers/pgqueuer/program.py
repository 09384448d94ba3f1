"""PgQueuer at its best: asyncpg, uvloop, batches of 1000, lists of jobs in one statement, durable tables.

A pool lets it log a batch while it takes the next; that was ahead of a single connection in each of five comparisons.
"""

import asyncio
import signal
import time
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import AsyncpgPoolDriver, Job, Queries, QueueManager

from bench.peers.protocol import TALLY, TARGET, Program, paced, speak

BATCH = 1000
LIST = 1000


async def queries() -> Queries:
    return Queries(AsyncpgPoolDriver(await asyncpg.create_pool(TARGET)))


class PgQueuerProgram(Program):
    run = staticmethod(uvloop.run)

    async def setup(self) -> None:
        await (await queries()).install()

    async def enqueue_bulk(self, jobs: int) -> float:
        queue = await queries()
        began = time.perf_counter()
        for first in range(0, jobs, LIST):
            size = min(LIST, jobs - first)
            await queue.enqueue(["noop"] * size, [None] * size, [0] * size)
        return time.perf_counter() - began

    async def enqueue_single(self, jobs: int) -> float:
        queue = await queries()
        began = time.perf_counter()
        for _ in range(jobs):
            await queue.enqueue("noop", None)
        return time.perf_counter() - began

    async def enqueue_timed(self, jobs: int) -> None:
        queue = await queries()
        for sent in paced(jobs):
            await queue.enqueue("noop", str(sent).encode())

    async def work(self) -> None:
        manager = QueueManager(await queries())

        @manager.entrypoint("noop")
        async def noop(job: Job) -> None:
            TALLY.mark(float(job.payload or 0))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
        await manager.run(dequeue_timeout=timedelta(seconds=5), batch_size=BATCH)

    async def left(self) -> int:
        return sum(row.count for row in await (await queries()).queue_size())


if __name__ == "__main__":
    speak(PgQueuerProgram())
