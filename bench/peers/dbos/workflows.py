"""Workflows on DBOS at its best: called or started in the process that runs them, so that no queue is polled."""

import threading
import time

import sqlalchemy
from dbos import DBOS

from bench.peers.dbos.program import URL, launched, launched_anew
from bench.peers.protocol import speak
from bench.workflows.protocol import STEPS, WorkflowProgram, one_by_one, one_more

step = DBOS.step(name="step")(one_more)


@DBOS.workflow(name="flow")
def flow() -> int:
    number = 0
    for _ in range(STEPS):
        number = step(number)
    return number


class DbosWorkflows(WorkflowProgram):
    def setup(self) -> None:
        launched_anew()
        DBOS.destroy()

    def alone(self, workflows: int, seconds: int) -> str:
        launched()
        flow()
        laps = one_by_one(flow, workflows, seconds)
        DBOS.destroy()
        return laps

    def work(self) -> None:
        threading.Event().wait()

    def many(self, workflows: int) -> float:
        launched()
        began = time.perf_counter()
        handles = [DBOS.start_workflow(flow) for _ in range(workflows)]
        assert all(handle.get_result() == STEPS for handle in handles)
        seconds = time.perf_counter() - began
        DBOS.destroy()
        return seconds

    def kept(self) -> int:
        table = "dbos.operation_outputs" if "postgresql" in URL else "operation_outputs"
        with sqlalchemy.create_engine(URL).connect() as connection:
            return connection.execute(sqlalchemy.text(f"SELECT count(*) FROM {table}")).scalar()


if __name__ == "__main__":
    speak(DbosWorkflows())
