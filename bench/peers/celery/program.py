"""Celery at its best on Redis: no results, no events, no gossip, tasks fetched far ahead, acknowledged early."""

import time

import redis
from celery import Celery

from bench.peers.protocol import TALLY, TARGET, Program, paced, speak

app = Celery("bench", broker=TARGET)
app.conf.update(
    task_ignore_result=True,
    task_default_queue="bench",
    worker_prefetch_multiplier=128,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)
WORKER = ["worker", "--pool=solo", "--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=ERROR"]


@app.task(name="noop")
def noop(sent: float = 0.0) -> None:
    TALLY.mark(sent)


class CeleryProgram(Program):
    def setup(self) -> None:
        pass

    def enqueue_bulk(self, jobs: int) -> float:
        with app.producer_pool.acquire() as producer:
            began = time.perf_counter()
            for _ in range(jobs):
                noop.apply_async(producer=producer)
            return time.perf_counter() - began

    def enqueue_single(self, jobs: int) -> float:
        return self.enqueue_bulk(jobs)

    def enqueue_timed(self, jobs: int) -> None:
        for sent in paced(jobs):
            noop.delay(sent)

    def work(self) -> None:
        app.worker_main(WORKER)

    def left(self) -> int:
        broker = redis.from_url(TARGET)
        return broker.llen("bench") + broker.hlen("unacked")


if __name__ == "__main__":
    speak(CeleryProgram())
