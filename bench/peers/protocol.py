"""What every program of a peer understands, so that one runner measures them all.

    python -m bench.peers.NAME.program setup | enqueue-bulk N | enqueue-single N | enqueue-timed N | work | left

BENCH_TARGET names the database or broker, BENCH_TALLY the folder for the marks of jobs. Those that measure or count
print one number. Only the standard library is used: peers have environments of their own.
"""

import asyncio
import inspect
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from bench.peers.tally import Tally

# For those that poll: often, yet not so often that a worker with nothing to do keeps a machine busy (see "idle CPU").
POLL_SECONDS = 0.01
SHORTEST_PAUSE, LONGEST_PAUSE = 0.015, 0.035

Answer = float | str | None | Awaitable[float] | Awaitable[str] | Awaitable[None]

TARGET = os.environ.get("BENCH_TARGET", "")
TALLY = Tally(os.environ.get("BENCH_TALLY", ""))


class Speaker:
    """Something with a method for every command it understands. Methods may be coroutines."""

    run: Callable[[Coroutine[Any, Any, float | str | None]], float | str | None] = staticmethod(asyncio.run)


class Program(Speaker, ABC):
    """One system under measurement."""

    @abstractmethod
    def setup(self) -> Answer:
        """Prepares an empty database."""

    @abstractmethod
    def enqueue_bulk(self, jobs: int) -> Answer:
        """Enqueues so many jobs in the fastest way there is; returns the seconds it took, once connected."""

    @abstractmethod
    def enqueue_single(self, jobs: int) -> Answer:
        """Enqueues so many jobs one after the other, each safely kept before the next; returns the seconds."""

    @abstractmethod
    def enqueue_timed(self, jobs: int) -> Answer:
        """Enqueues single jobs at the moments that `paced` gives, which each job carries to its mark."""

    @abstractmethod
    def work(self) -> Answer:
        """Works as one worker until SIGTERM."""

    @abstractmethod
    def left(self) -> Answer:
        """How many jobs are not done yet."""


def paced(jobs: int) -> Iterator[float]:
    """So many moments, far enough apart for a worker to be idle again, and in step with nobody's polling."""
    chance = random.Random(1)
    for _ in range(jobs):
        time.sleep(chance.uniform(SHORTEST_PAUSE, LONGEST_PAUSE))
        yield time.monotonic()


def speak(program: Speaker) -> None:
    """Does what the command line says."""
    command, *numbers = sys.argv[1:]
    answer = getattr(program, command.replace("-", "_"))(*map(int, numbers))
    if inspect.iscoroutine(answer):
        answer = type(program).run(answer)
    if answer is not None:
        print(answer)
