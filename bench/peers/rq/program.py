"""RQ at its best: a worker that forks no process for each job, results not kept, many jobs in one pipeline."""

import time

import redis
from rq import Queue, SimpleWorker

from bench.peers.protocol import TALLY, TARGET, Program, paced, speak

LIST = 1000
NOOP = "bench.peers.rq.program.noop"


def noop(sent: float = 0.0) -> None:
    TALLY.mark(sent)


class RqProgram(Program):
    def __init__(self) -> None:
        self.queue = Queue("bench", connection=redis.from_url(TARGET))

    def setup(self) -> None:
        self.queue.connection.ping()

    def enqueue_bulk(self, jobs: int) -> float:
        began = time.perf_counter()
        for first in range(0, jobs, LIST):
            self.queue.enqueue_many([Queue.prepare_data(NOOP, result_ttl=0)] * min(LIST, jobs - first))
        return time.perf_counter() - began

    def enqueue_single(self, jobs: int) -> float:
        began = time.perf_counter()
        for _ in range(jobs):
            self.queue.enqueue(NOOP, result_ttl=0)
        return time.perf_counter() - began

    def enqueue_timed(self, jobs: int) -> None:
        for sent in paced(jobs):
            self.queue.enqueue(NOOP, sent, result_ttl=0)

    def work(self) -> None:
        SimpleWorker([self.queue], connection=self.queue.connection).work(logging_level="ERROR")

    def left(self) -> int:
        return self.queue.count + self.queue.started_job_registry.count


if __name__ == "__main__":
    speak(RqProgram())
