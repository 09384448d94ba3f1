"""DBOS at its best: a queue polled often, with a bound on what one process takes at once, enqueued in transactions."""

import os
import threading
import time

import sqlalchemy
from dbos import DBOS, DBOSClient

from bench.peers.protocol import TALLY, TARGET, Program, paced, speak

LIST = 500
CONCURRENCY = 200
THREADS = 16
# A poll costs it so much that ten milliseconds would keep a fifth of a core busy doing nothing.
POLL_SECONDS = 0.05

URL = TARGET.replace("postgresql:", "postgresql+psycopg:")
TASK = {"workflow_name": "noop", "queue_name": "bench"}


@DBOS.workflow(name="noop")
def noop(sent: float = 0.0) -> None:
    TALLY.mark(sent)


def launched() -> None:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": URL,
            "application_version": "1",
            "executor_id": str(os.getpid()),
            "max_executor_threads": THREADS,
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()


def launched_anew() -> None:
    """For the first time, on an empty database."""
    if "sqlite" in URL:
        with sqlalchemy.create_engine(URL).connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
    launched()


class DbosProgram(Program):
    def setup(self) -> None:
        launched_anew()
        DBOS.register_queue("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=POLL_SECONDS)
        DBOS.destroy()

    def enqueue_bulk(self, jobs: int) -> float:
        engine = sqlalchemy.create_engine(URL)
        client = DBOSClient(system_database_engine=engine)
        began = time.perf_counter()
        for first in range(0, jobs, LIST):
            with engine.begin() as connection:
                for _ in range(min(LIST, jobs - first)):
                    client.enqueue_in_transaction(connection, TASK)
        return time.perf_counter() - began

    def enqueue_single(self, jobs: int) -> float:
        client = DBOSClient(system_database_url=URL)
        began = time.perf_counter()
        for _ in range(jobs):
            client.enqueue(TASK)
        return time.perf_counter() - began

    def enqueue_timed(self, jobs: int) -> None:
        client = DBOSClient(system_database_url=URL)
        for sent in paced(jobs):
            client.enqueue(TASK, sent)

    def work(self) -> None:
        launched()
        threading.Event().wait()

    def left(self) -> int:
        table = "dbos.workflow_status" if "postgresql" in URL else "workflow_status"
        with sqlalchemy.create_engine(URL).connect() as connection:
            question = f"SELECT count(*) FROM {table} WHERE status <> 'SUCCESS'"
            return connection.execute(sqlalchemy.text(question)).scalar()


if __name__ == "__main__":
    speak(DbosProgram())
