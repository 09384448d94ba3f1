"""Workflows on Keptwork: every result of a step and every move durable, the results of steps that end together in one
commit."""

import asyncio
import signal
import time

from bench.peers.protocol import TARGET, speak
from bench.workflows.protocol import LOOK_SECONDS, STEPS, WorkflowProgram, one_by_one_awaited, one_more
from keptwork import Context, Keptwork

LIST = 1000
CONCURRENCY = 200
UNFINISHED = """SELECT 1 FROM (SELECT 1 FROM jobs WHERE state = 'queued' AND held_by IS NULL LIMIT 1) AS waiting
UNION ALL SELECT 1 FROM (SELECT 1 FROM jobs WHERE state IN ('assigned', 'running') LIMIT 1) AS running"""

app = Keptwork(TARGET)


async def step(number: int) -> int:
    return one_more(number)


@app.job()
async def flow(ctx: Context) -> int:
    number = 0
    for place in range(STEPS):
        number = await ctx.step(f"step {place}", step, number)
    return number


class KeptworkWorkflows(WorkflowProgram):
    async def setup(self) -> None:
        async with app:
            pass

    async def alone(self, workflows: int, seconds: int) -> str:
        async def run() -> int:
            result: int = await (await flow.enqueue()).result()
            return result

        async with app:
            work = asyncio.create_task(app.work())
            await run()  # the worker has started
            laps = await one_by_one_awaited(run, workflows, seconds)
            app.stop()
            await work
            return laps

    async def work(self) -> None:
        async with app:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
            await app.work(concurrency=CONCURRENCY)

    async def many(self, workflows: int) -> float:
        async with app:
            began = time.perf_counter()
            for first in range(0, workflows, LIST):
                await app.enqueue_many(flow, [{}] * min(LIST, workflows - first))
            while await left():  # noqa: ASYNC110 - another process does the work
                await asyncio.sleep(LOOK_SECONDS)
            return time.perf_counter() - began

    async def kept(self) -> int:
        async with app:
            async with app.transaction() as transaction:
                (row,) = await transaction.fetch("SELECT count(*) AS kept FROM checkpoints")
            return int(row["kept"])


async def left() -> bool:
    """Whether any has not ended: one step in an index of those that have not, so that asking costs next to nothing."""
    async with app.transaction() as transaction:
        return bool(await transaction.fetch(UNFINISHED))


if __name__ == "__main__":
    speak(KeptworkWorkflows())
