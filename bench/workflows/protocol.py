"""What every program of a workflow system understands, so that one runner measures them all.

    python -m bench.peers.NAME.workflows setup | alone N SECONDS | work | many N | kept

A workflow is five steps in a row, each one more than the step before; the result of a step is kept before the next one
begins, and so is that of the workflow. BENCH_TARGET names the database or server. Only the standard library is used:
peers have environments of their own. `workflows.mjs` of Restate speaks the same.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

from bench.peers.protocol import Answer, Speaker

STEPS = 5
LOOK_SECONDS = 0.02


class WorkflowProgram(Speaker, ABC):
    """One system under measurement."""

    @abstractmethod
    def setup(self) -> Answer:
        """Prepares an empty database."""

    @abstractmethod
    def alone(self, workflows: int, seconds: int) -> Answer:
        """Runs so many workflows, or for so long, one after the other, caller and worker in this process; returns how
        long each took: from just before the call that starts it until the caller has its result."""

    @abstractmethod
    def work(self) -> Answer:
        """Works as one process until SIGTERM."""

    @abstractmethod
    def many(self, workflows: int) -> Answer:
        """Starts so many workflows as fast as it can; returns the seconds until all of them have ended."""

    @abstractmethod
    def kept(self) -> Answer:
        """How many results of steps the database holds."""


def one_more(number: int) -> int:
    """What a step does."""
    return number + 1


def one_by_one(workflow: Callable[[], int], workflows: int, seconds: int) -> str:
    """Times an ordinary function that runs a workflow and returns its result."""
    watch = Watch(workflows, seconds)
    while watch.goes_on:
        began = time.perf_counter()
        watch.lap(began, workflow())
    return watch.listed


async def one_by_one_awaited(workflow: Callable[[], Awaitable[int]], workflows: int, seconds: int) -> str:
    """The same for a coroutine."""
    watch = Watch(workflows, seconds)
    while watch.goes_on:
        began = time.perf_counter()
        watch.lap(began, await workflow())
    return watch.listed


class Watch:
    """How long each workflow took, until there were enough or the time is over."""

    def __init__(self, workflows: int, seconds: int) -> None:
        self._workflows = workflows
        self._ends = time.perf_counter() + seconds
        self._laps: list[float] = []

    @property
    def goes_on(self) -> bool:
        return len(self._laps) < self._workflows and time.perf_counter() < self._ends

    def lap(self, began: float, result: int) -> None:
        self._laps.append(time.perf_counter() - began)
        assert result == STEPS, f"the workflow returned {result!r}"

    @property
    def listed(self) -> str:
        return " ".join(f"{lap:.6f}" for lap in self._laps)
