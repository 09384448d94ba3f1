"""Absurd at its best: one connection, claims of many tasks at once, spawned in transactions of many.

Its worker runs tasks one after the other on its connection; threads only contend for it.
"""

import signal
import time

from absurd_sdk import Absurd
from absurdctl import BUNDLED_SCHEMA_SQL
from psycopg import Connection

from bench.peers.protocol import POLL_SECONDS, TALLY, TARGET, Program, paced, speak

LIST = 500
BATCH = 100


class AbsurdProgram(Program):
    def setup(self) -> None:
        with Connection.connect(TARGET, autocommit=True) as connection:
            connection.execute(BUNDLED_SCHEMA_SQL)
            Absurd(connection).create_queue()

    def enqueue_bulk(self, jobs: int) -> float:
        with Connection.connect(TARGET, autocommit=True) as connection:
            app = declared(connection)
            began = time.perf_counter()
            for first in range(0, jobs, LIST):
                with connection.transaction():
                    for _ in range(min(LIST, jobs - first)):
                        app.spawn("noop", 0.0)
            return time.perf_counter() - began

    def enqueue_single(self, jobs: int) -> float:
        app = declared(TARGET)
        began = time.perf_counter()
        for _ in range(jobs):
            app.spawn("noop", 0.0)
        return time.perf_counter() - began

    def enqueue_timed(self, jobs: int) -> None:
        app = declared(TARGET)
        for sent in paced(jobs):
            app.spawn("noop", sent)

    def work(self) -> None:
        app = declared(TARGET)
        signal.signal(signal.SIGTERM, lambda *_: app.stop_worker())
        app.start_worker(batch_size=BATCH, poll_interval=POLL_SECONDS)

    def left(self) -> int:
        with Connection.connect(TARGET) as connection:
            return connection.execute("SELECT count(*) FROM absurd.t_default WHERE state <> 'completed'").fetchone()[0]


def declared(target: str | Connection) -> Absurd:
    app = Absurd(target)

    @app.register_task("noop")
    def noop(sent: float, context: object) -> None:
        TALLY.mark(sent)

    return app


if __name__ == "__main__":
    speak(AbsurdProgram())
