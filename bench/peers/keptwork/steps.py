"""Flows on Keptwork written as code: a job that awaits its steps, each kept before the job sees what came of it."""

import asyncio
import signal
import time

from bench.flows.protocol import WARM, FlowProgram, awaited
from bench.peers.protocol import TARGET, speak
from keptwork import Context, Keptwork
from keptwork.job import DeclaredJob

app = Keptwork(TARGET)


@app.job()
async def side_by_side(ctx: Context, steps: int) -> int:
    return len(await asyncio.gather(*(ctx.step(f"s{place}", awaited, place) for place in range(steps))))


@app.job()
async def one_by_one(ctx: Context, steps: int) -> int:
    return sum([await ctx.step(f"s{place}", awaited, place) == place for place in range(steps)])


class KeptworkSteps(FlowProgram):
    async def setup(self) -> None:
        async with app:
            pass

    async def work(self) -> None:
        async with app:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, app.stop)
            await app.work()

    async def wide(self, steps: int) -> float:
        return await ended(side_by_side, steps)

    async def chain(self, steps: int) -> float:
        return await ended(one_by_one, steps)

    async def kept(self) -> int:
        async with app, app.transaction() as transaction:
            (row,) = await transaction.fetch("SELECT count(*) AS kept FROM checkpoints")
            return int(row["kept"])


async def ended(flow: DeclaredJob, steps: int) -> float:
    async with app:
        assert await (await flow.enqueue(steps=WARM)).result() == WARM
        began = time.perf_counter()
        assert await (await flow.enqueue(steps=steps)).result() == steps
        return time.perf_counter() - began


if __name__ == "__main__":
    speak(KeptworkSteps())
