"""Flows on Prefect at its best: one flow called in the process that runs it, its tasks on one event loop; results of
tasks persisted to files, states kept by its server."""

import asyncio
import os
import threading
import time

from bench.flows.protocol import WARM, FlowProgram, noop
from bench.peers.prefect.settings import settings
from bench.peers.prefect.workflows import PrefectWorkflows
from bench.peers.protocol import TARGET, speak

# Read when it is imported.
os.environ |= {"PREFECT_API_URL": TARGET, **settings(os.environ["BENCH_TALLY"])}

from prefect import flow, task

SETTLE_SECONDS = 2  # what it still does for a flow that has ended slows down the next one


@task(persist_result=True)
async def step(number: int) -> int:
    return noop(number)


@flow(persist_result=True)
async def side_by_side(steps: int) -> int:
    return len(await asyncio.gather(*(step(number) for number in range(steps))))


@flow(persist_result=True)
async def one_by_one(steps: int) -> int:
    return sum([await step(number) == number for number in range(steps)])


class PrefectFlows(FlowProgram):
    def setup(self) -> None:
        """Its server has prepared the database."""

    def work(self) -> None:
        threading.Event().wait()

    async def wide(self, steps: int) -> float:
        await side_by_side(WARM)
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        assert await side_by_side(steps) == steps
        return time.perf_counter() - began

    async def chain(self, steps: int) -> float:
        await one_by_one(WARM)
        await asyncio.sleep(SETTLE_SECONDS)
        began = time.perf_counter()
        assert await one_by_one(steps) == steps
        return time.perf_counter() - began

    def kept(self) -> int:
        return PrefectWorkflows().kept()


if __name__ == "__main__":
    speak(PrefectFlows())
