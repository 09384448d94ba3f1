"""Workflows on Prefect at its best: flows called in the process that runs them (a deployment would start a process for
each), many at a time on one event loop; results of tasks persisted to files, states kept by its server."""

import asyncio
import json
import os
import threading
import time
from urllib.request import Request, urlopen

from bench.peers.prefect.settings import settings
from bench.peers.protocol import TARGET, speak
from bench.workflows.protocol import STEPS, WorkflowProgram, one_by_one_awaited, one_more

# Read when it is imported.
os.environ |= {"PREFECT_API_URL": TARGET, **settings(os.environ["BENCH_TALLY"])}

from prefect import flow, task

IN_FLIGHT = 10


@task(persist_result=True)
async def step(number: int) -> int:
    return one_more(number)


@flow(persist_result=True)
async def steps() -> int:
    number = 0
    for _ in range(STEPS):
        number = await step(number)
    return number


class PrefectWorkflows(WorkflowProgram):
    def setup(self) -> None:
        """Its server has prepared the database."""

    async def alone(self, workflows: int, seconds: int) -> str:
        await steps()
        return await one_by_one_awaited(steps, workflows, seconds)

    def work(self) -> None:
        threading.Event().wait()

    async def many(self, workflows: int) -> float:
        room = asyncio.Semaphore(IN_FLIGHT)

        async def run() -> int:
            async with room:
                return await steps()

        began = time.perf_counter()
        results = await asyncio.gather(*(run() for _ in range(workflows)))
        assert results == [STEPS] * workflows
        return time.perf_counter() - began

    def kept(self) -> int:
        """The server learns of the states of tasks by events, somewhat later than the caller."""
        body = json.dumps({"task_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}).encode()
        ask = Request(  # noqa: S310 - our own server, on loopback
            f"{TARGET}/task_runs/count", body, {"content-type": "application/json"}
        )
        found = before = -1
        while found < 0 or found > before:
            before = found
            time.sleep(1)
            with urlopen(ask) as answer:  # noqa: S310
                found = json.load(answer)
        return found


if __name__ == "__main__":
    speak(PrefectWorkflows())
