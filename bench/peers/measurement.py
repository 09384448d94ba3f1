"""What is measured of a system, each figure on something empty, every program in a process of its own.

Drain: all jobs are enqueued beforehand. The rate is that of jobs started while every worker was at work, without the
first and the last tenth of that time: starting up and the uneven end are in nobody's figure. That the jobs were not
only started but finished is asked of the system afterwards.

To start: single jobs to an idle worker, from just before the call that enqueues to the first line of the job.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.catalogue import System
from bench.peers.engine import Engines
from bench.peers.processes import Failed, Station, Workers
from bench.peers.tally import Mark, marks

PROBES = 5
WARM_SECONDS = 20.0
FINISH_SECONDS = 10.0
MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: how long a drain is to take, how many single jobs, or a number of jobs for every drain."""

    seconds: float = 6.0
    singles: int = 200
    jobs: int | None = None

    def jobs_at(self, rate: float) -> int:
        return self.jobs or max(int(rate * self.seconds), 500)


@dataclass(slots=True)
class Figures:
    """All that was measured of one system, one value a round."""

    values: dict[str, list[float]] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float | None:
        return statistics.median(self.values[name]) if name in self.values else None


def measure(system: System, engines: Engines, effort: Effort, figures: Figures) -> None:
    """One round of everything; what fails is told, and the rest is measured all the same."""
    for part in (singles, drain_by_one, drain_by_two):
        try:
            with station(system, engines) as place:
                part(place, effort, figures)
        except Failed as error:
            figures.trouble.append(str(error))


@contextmanager
def station(system: System, engines: Engines) -> Iterator[Station]:
    with engines.empty(system) as target, tempfile.TemporaryDirectory(prefix="tally-") as folder:
        place = Station(system, target, Path(folder))
        place.ask("setup")
        yield place


def singles(place: Station, effort: Effort, figures: Figures) -> None:
    """Single jobs to an idle worker, and then as many as one process can enqueue one by one."""
    with place.workers(1) as workers:
        place.ask("enqueue-timed", str(PROBES))
        if not place.wait_for(PROBES, WARM_SECONDS, workers):
            raise Failed(f"a worker did not start {PROBES} jobs within {WARM_SECONDS:.0f} s")
        place.ask("enqueue-timed", str(effort.singles))
        if not place.wait_for(PROBES + effort.singles, WARM_SECONDS, workers):
            raise Failed(f"a worker did not start {effort.singles} jobs within {WARM_SECONDS:.0f} s")
    waits = sorted((mark.started - mark.sent) * 1000 for process in marks(place.folder) for mark in process)
    late = sorted(marks_of(place), key=lambda mark: mark.sent)[PROBES:]
    waits = sorted((mark.started - mark.sent) * 1000 for mark in late)
    figures.add("p50_ms", waits[len(waits) // 2])
    figures.add("p95_ms", waits[len(waits) * 95 // 100])
    figures.add("single", place.rate("enqueue-single", effort.jobs_at(place.system.singles_per_second) // 2))


def drain_by_one(place: Station, effort: Effort, figures: Figures) -> None:
    drain(place, effort, figures, 1, "drain", place.system.seen.drain)


def drain_by_two(place: Station, effort: Effort, figures: Figures) -> None:
    drain(place, effort, figures, 2, "drain_two", place.system.seen.drain_two or place.system.seen.drain)


def drain(
    place: Station, effort: Effort, figures: Figures, number: int, name: str, expected: float | None
) -> None:
    jobs = effort.jobs_at(expected or 1000)
    figures.add("bulk", place.rate("enqueue-bulk", jobs))
    with place.workers(number) as workers:
        # A system slower than expected is measured by what it got done.
        if place.wait_for(jobs, effort.seconds * 4, workers):
            finished(place)
        figures.add("memory_mib", workers.peak_mib())
    figures.add(name, rate(marks(place.folder), number))


def finished(place: Station) -> None:
    deadline = time.monotonic() + FINISH_SECONDS
    while left := int(float(place.ask("left"))):
        if time.monotonic() > deadline:
            raise Failed(f"{left:,} jobs had started but were not finished {FINISH_SECONDS:.0f} s later")


def rate(processes: list[list[Mark]], workers: int) -> float:
    """Jobs per second while all were at work, without the margins of that time."""
    if len(processes) < workers:
        raise Failed(f"of {workers} workers only {len(processes)} did anything")
    began = max(process[0].started for process in processes)
    ended = min(process[-1].started for process in processes)
    began, ended = began + (ended - began) * MARGIN, ended - (ended - began) * MARGIN
    if ended <= began:
        raise Failed("the workers were never at work at the same time")
    return sum(began <= mark.started < ended for process in processes for mark in process) / (ended - began)


def marks_of(place: Station) -> list[Mark]:
    return [mark for process in marks(place.folder) for mark in process]
