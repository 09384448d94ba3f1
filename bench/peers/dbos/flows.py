"""Flows on DBOS at its best: workflows called in the process that runs them, so that no queue is polled."""

import asyncio
import threading
import time

import sqlalchemy
from dbos import DBOS

from bench.flows.protocol import WARM, FlowProgram, awaited, noop
from bench.peers.dbos.program import URL, launched, launched_anew
from bench.peers.protocol import speak

step = DBOS.step(name="step")(noop)
async_step = DBOS.step(name="awaited")(awaited)


@DBOS.workflow(name="chain")
def one_by_one(steps: int) -> int:
    return sum(step(number) == number for number in range(steps))


@DBOS.workflow(name="wide")
async def side_by_side(steps: int) -> int:
    return len(await asyncio.gather(*(async_step(number) for number in range(steps))))


class DbosFlows(FlowProgram):
    def setup(self) -> None:
        launched_anew()
        DBOS.destroy()

    def work(self) -> None:
        threading.Event().wait()

    async def wide(self, steps: int) -> float:
        launched()
        await side_by_side(WARM)
        began = time.perf_counter()
        assert await side_by_side(steps) == steps
        seconds = time.perf_counter() - began
        DBOS.destroy()
        return seconds

    def chain(self, steps: int) -> float:
        launched()
        one_by_one(WARM)
        began = time.perf_counter()
        assert one_by_one(steps) == steps
        seconds = time.perf_counter() - began
        DBOS.destroy()
        return seconds

    def kept(self) -> int:
        table = "dbos.operation_outputs" if "postgresql" in URL else "operation_outputs"
        with sqlalchemy.create_engine(URL).connect() as connection:
            return connection.execute(sqlalchemy.text(f"SELECT count(*) FROM {table}")).scalar()


if __name__ == "__main__":
    speak(DbosFlows())
