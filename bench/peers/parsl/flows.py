"""Flows on Parsl at its best on one machine: its own executor of processes, or threads; results checkpointed."""

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import parsl
from parsl.config import Config
from parsl.dataflow.memoization import BasicMemoizer
from parsl.executors import HighThroughputExecutor, ThreadPoolExecutor
from parsl.providers import LocalProvider

from bench.flows.protocol import WARM, FlowProgram
from bench.peers.protocol import TARGET, speak

THREADS, WORKERS = 8, 2
# Its processes are programs that lie beside the interpreter.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@parsl.python_app(cache=True)
def step(number: int, *before: int) -> int:
    return number


def loaded() -> None:
    kind, _, folder = TARGET.partition(":")
    threads = ThreadPoolExecutor(max_threads=THREADS)
    executor = threads if kind == "threads" else _processes(folder)
    memory = BasicMemoizer(checkpoint_mode="task_exit")
    quiet = {"usage_tracking": 0, "initialize_logging": False, "strategy": "none"}
    parsl.load(Config(executors=[executor], memoizer=memory, run_dir=f"{folder}/runinfo", **quiet))


def _processes(folder: str) -> HighThroughputExecutor:
    place = LocalProvider(init_blocks=1, max_blocks=1)
    return HighThroughputExecutor(
        address="127.0.0.1", max_workers_per_node=WORKERS, provider=place, working_dir=folder, cores_per_worker=0.1
    )


class ParslFlows(FlowProgram):
    def setup(self) -> None:
        """There is nothing to prepare."""

    def work(self) -> None:
        threading.Event().wait()

    def wide(self, steps: int) -> float:
        return self._timed(steps, lambda numbers: [step(number) for number in numbers])

    def chain(self, steps: int) -> float:
        def started(numbers: range) -> list[Any]:
            last: list[Any] = []
            for number in numbers:
                last = [step(number, *last)]
            return last

        return self._timed(steps, started)

    def _timed(self, steps: int, start: Callable[[range], list[Any]]) -> float:
        loaded()
        for future in start(range(-WARM, 0)):  # other numbers: what is known is not called again
            future.result()
        began = time.perf_counter()
        assert [future.result() for future in start(range(steps))][-1] == steps - 1
        seconds = time.perf_counter() - began
        parsl.dfk().cleanup()
        return seconds

    def kept(self) -> int:
        """What its checkpoints hold, one record after the other."""
        found = 0
        for path in Path(TARGET.partition(":")[2]).glob("runinfo/*/checkpoint/tasks.pkl"):
            with path.open("rb") as file:
                while file.peek(1):
                    pickle.load(file)  # noqa: S301 - written by this program
                    found += 1
        return found


if __name__ == "__main__":
    speak(ParslFlows())
