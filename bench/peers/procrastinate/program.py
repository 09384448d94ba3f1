"""Procrastinate at its best: many jobs at once on a pool of connections, deferred in batches, woken by NOTIFY."""

import time

from procrastinate import App, PsycopgConnector

from bench.peers.protocol import TALLY, TARGET, Program, paced, speak

LIST = 1000
CONCURRENCY = 20

app = App(connector=PsycopgConnector(conninfo=TARGET, min_size=CONCURRENCY, max_size=CONCURRENCY + 4))


@app.task(name="noop")
async def noop(sent: float = 0.0) -> None:
    TALLY.mark(sent)


class ProcrastinateProgram(Program):
    async def setup(self) -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    async def enqueue_bulk(self, jobs: int) -> float:
        async with app.open_async():
            began = time.perf_counter()
            for first in range(0, jobs, LIST):
                await noop.batch_defer_async(*[{}] * min(LIST, jobs - first))
            return time.perf_counter() - began

    async def enqueue_single(self, jobs: int) -> float:
        async with app.open_async():
            began = time.perf_counter()
            for _ in range(jobs):
                await noop.defer_async()
            return time.perf_counter() - began

    async def enqueue_timed(self, jobs: int) -> None:
        async with app.open_async():
            for sent in paced(jobs):
                await noop.defer_async(sent=sent)

    async def work(self) -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=CONCURRENCY)

    async def left(self) -> int:
        async with app.open_async():
            statuses = await app.job_manager.list_queues_async()
            return sum(queue["todo"] + queue["doing"] for queue in statuses)


if __name__ == "__main__":
    speak(ProcrastinateProgram())
