"""Huey at its best on SQLite: one consumer thread (more of them only wait for the file), results not stored.

`fsync=True` is what makes a commit durable, as Keptwork's are; Huey itself takes a job off the queue before it runs, so
that one which was under way when the process died is lost.
"""

import time

from huey import SqliteHuey

from bench.peers.protocol import POLL_SECONDS, TALLY, TARGET, Program, paced, speak

huey = SqliteHuey("bench", filename=TARGET, fsync=True, results=False, timeout=30)


@huey.task()
def noop(sent: float = 0.0) -> None:
    TALLY.mark(sent)


class HueyProgram(Program):
    def setup(self) -> None:
        huey.storage.queue_size()

    def enqueue_bulk(self, jobs: int) -> float:
        return self.enqueue_single(jobs)

    def enqueue_single(self, jobs: int) -> float:
        began = time.perf_counter()
        for _ in range(jobs):
            noop()
        return time.perf_counter() - began

    def enqueue_timed(self, jobs: int) -> None:
        for sent in paced(jobs):
            noop(sent)

    def work(self) -> None:
        huey.create_consumer(workers=1, periodic=False, initial_delay=POLL_SECONDS, max_delay=POLL_SECONDS).run()

    def left(self) -> int:
        return huey.pending_count()


if __name__ == "__main__":
    speak(HueyProgram())
