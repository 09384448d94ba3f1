"""Workflows on DBOS at its best: called or started in the process that runs them, so that no queue is polled."""

import os
import threading
import time

import sqlalchemy
from dbos import DBOS

from bench.peers.protocol import TARGET, speak
from bench.workflows.protocol import STEPS, WorkflowProgram, one_by_one, one_more

THREADS = 16
URL = TARGET.replace("postgresql:", "postgresql+psycopg:")

step = DBOS.step(name="step")(one_more)


@DBOS.workflow(name="flow")
def flow() -> int:
    number = 0
    for _ in range(STEPS):
        number = step(number)
    return number


def launched() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": URL,
            "application_version": "1",
            "executor_id": str(os.getpid()),
            "max_executor_threads": THREADS,
            "sys_db_pool_size": THREADS + 4,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()


class DbosWorkflows(WorkflowProgram):
    def setup(self) -> None:
        if "sqlite" in URL:
            with sqlalchemy.create_engine(URL).connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        launched()
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
