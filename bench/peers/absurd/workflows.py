"""Workflows on Absurd at its best: several workers in one process, each a thread with a connection of its own, so that
their commits share what the disk does; claims of a few tasks at once."""

import signal
import threading
import time
from functools import partial
from typing import Any

from absurd_sdk import Absurd
from psycopg import Connection

from bench.peers.absurd.program import AbsurdProgram
from bench.peers.protocol import POLL_SECONDS, TARGET, speak
from bench.workflows.protocol import LOOK_SECONDS, STEPS, WorkflowProgram, one_by_one, one_more

LIST = 500
BATCH = 10
WORKERS = 8


class AbsurdWorkflows(WorkflowProgram):
    def setup(self) -> None:
        AbsurdProgram().setup()

    def alone(self, workflows: int, seconds: int) -> str:
        app, worker = Absurd(TARGET), declared()
        thread = threading.Thread(target=partial(worker.start_worker, poll_interval=POLL_SECONDS))
        thread.start()
        run = partial(run_one, app)
        run()
        laps = one_by_one(run, workflows, seconds)
        worker.stop_worker()
        thread.join()
        return laps

    def work(self) -> None:
        workers = [declared() for _ in range(WORKERS)]
        threads = [
            threading.Thread(target=partial(worker.start_worker, batch_size=BATCH, poll_interval=POLL_SECONDS))
            for worker in workers
        ]
        signal.signal(signal.SIGTERM, lambda *_: [worker.stop_worker() for worker in workers])
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def many(self, workflows: int) -> float:
        with Connection.connect(TARGET, autocommit=True) as connection:
            app = Absurd(connection)
            began = time.perf_counter()
            for first in range(0, workflows, LIST):
                with connection.transaction():
                    for _ in range(min(LIST, workflows - first)):
                        app.spawn("flow", None, queue="default")
            while counted(connection, "t_default WHERE state <> 'completed'"):
                time.sleep(LOOK_SECONDS)
            return time.perf_counter() - began

    def kept(self) -> int:
        with Connection.connect(TARGET) as connection:
            return counted(connection, "c_default")


def declared() -> Absurd:
    app = Absurd(TARGET)

    @app.register_task("flow")
    def flow(_: object, context: Any) -> int:
        number = 0
        for place in range(STEPS):
            number = context.step(f"step {place}", partial(one_more, number))
        return number

    return app


def run_one(app: Absurd) -> int:
    """Its own wait for a result first looks again after 50 ms; this one looks as often as the worker does."""
    task = app.spawn("flow", None, queue="default")["task_id"]
    while (found := app.fetch_task_result(task)) is None or found.state != "completed":
        time.sleep(POLL_SECONDS / 10)
    return found.result


def counted(connection: Connection, what: str) -> int:
    return connection.execute(f"SELECT count(*) FROM absurd.{what}").fetchone()[0]


if __name__ == "__main__":
    speak(AbsurdWorkflows())
