"""Keptwork with its defaults: every commit durable, every move an event."""

import asyncio
import signal
import time

from bench.peers.protocol import TALLY, TARGET, Program, paced, speak
from keptwork import Keptwork
from keptwork.context import Context
from keptwork.store.contract.records import DEFAULT_TENANT

LIST = 1000

app = Keptwork(TARGET)


@app.job()
async def noop(ctx: Context, sent: float = 0.0) -> None:
    TALLY.mark(sent)


class KeptworkProgram(Program):
    async def setup(self) -> None:
        async with app:
            pass

    async def enqueue_bulk(self, jobs: int) -> float:
        async with app:
            began = time.perf_counter()
            for first in range(0, jobs, LIST):
                await app.enqueue_many(noop, [{}] * min(LIST, jobs - first))
            return time.perf_counter() - began

    async def enqueue_single(self, jobs: int) -> float:
        async with app:
            began = time.perf_counter()
            for _ in range(jobs):
                await noop.enqueue()
            return time.perf_counter() - began

    async def enqueue_timed(self, jobs: int) -> None:
        async with app:
            for sent in paced(jobs):
                await noop.enqueue(sent=sent)

    async def work(self) -> None:
        async with app:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
            await app.work()

    async def left(self) -> int:
        async with app:
            queues = await (await app.open()).queues(DEFAULT_TENANT)
            return sum(number for queue in queues for state, number in queue.jobs.items() if state != "succeeded")


if __name__ == "__main__":
    speak(KeptworkProgram())
