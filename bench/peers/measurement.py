"""What is measured of a system, each figure on something empty, every program in a process of its own.

Drain: all jobs are enqueued beforehand. The rate is that of jobs started while every worker was at work, without the
first and the last tenth of that time: starting up and the uneven end are in nobody's figure. That the jobs were not
only started but finished is asked of the system afterwards.

To start: single jobs to an idle worker, from just before the call that enqueues to the first line of the job.

Idle: how much of one core a worker with nothing to do takes, in percent; what it makes its database do is not counted.

Memory: the most that a worker process held, child processes included, when it had drained its jobs.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.peers.catalogue import Part, System
from bench.peers.engine import Engines
from bench.peers.processes import Failed, Station, Workers
from bench.peers.tally import Mark, marks

FEWEST_JOBS = 500
SINGLES_PER_SECOND = 500
PROBES = 5
IDLE_SECONDS = 2.0
WARM_SECONDS = 20.0
FINISH_SECONDS = 10.0
MARGIN = 0.1


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: how long a drain should take, how many timed jobs, or a number of jobs for every drain."""

    seconds: float = 4.0
    timed: int = 200
    jobs: int | None = None

    def jobs_at(self, rate: float) -> int:
        return self.jobs or max(int(rate * self.seconds), FEWEST_JOBS)


@dataclass(slots=True)
class Figures:
    """All that was measured of one system, one value a round, and what went wrong."""

    values: dict[str, list[float]] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)

    def add(self, name: str, value: float) -> None:
        self.values.setdefault(name, []).append(value)

    def median(self, name: str) -> float | None:
        return statistics.median(self.values[name]) if name in self.values else None


def measure(
    system: System, parts: "Mapping[Part, Measure]", engines: Engines, effort: Effort, figures: Figures
) -> None:
    """One round; what fails is told, and the rest is measured all the same."""
    for part, measure_part in parts.items():
        try:
            with station(system, engines) as place:
                measure_part(place, effort, figures)
        except Failed as error:
            figures.trouble.append(f"{part}: {error}")


@contextmanager
def station(system: System, engines: Engines) -> Iterator[Station]:
    with engines.empty(system) as target, tempfile.TemporaryDirectory(prefix="tally-") as folder:
        place = Station(system, target, Path(folder))
        place.ask("setup")
        yield place


def singles(place: Station, effort: Effort, figures: Figures) -> None:
    """Single jobs to an idle worker, and then as many as one process can enqueue one by one while nobody works."""
    with place.workers(1) as workers:
        send(place, workers, PROBES, PROBES)
        figures.add("idle_cpu", workers.idle_cpu(IDLE_SECONDS))
        send(place, workers, effort.timed, PROBES + effort.timed)
    waits = to_start_ms([mark for process in marks(place.folder) for mark in process])
    figures.add("p50_ms", waits[len(waits) // 2])
    figures.add("p95_ms", waits[len(waits) * 95 // 100])
    figures.add("single", place.rate("enqueue-single", int(SINGLES_PER_SECOND * effort.seconds)))


def send(place: Station, workers: Workers, number: int, total: int) -> None:
    """Sends so many jobs at their moments, and waits until there were so many in total."""
    place.ask("enqueue-timed", str(number))
    if not place.wait_for(total, WARM_SECONDS, workers):
        raise Failed(f"a worker did not start {number} jobs within {WARM_SECONDS:.0f} s")


def to_start_ms(all_marks: list[Mark]) -> list[float]:
    """How long each job waited, in order, without the first few: those waited for the worker to start."""
    timed = sorted(all_marks, key=lambda mark: mark.sent)[PROBES:]
    return sorted((mark.started - mark.sent) * 1000 for mark in timed)


def drain_by_one(place: Station, effort: Effort, figures: Figures) -> None:
    drain(place, effort, figures, 1, "drain")


def drain_by_two(place: Station, effort: Effort, figures: Figures) -> None:
    drain(place, effort, figures, 2, "drain_two")


def drain(place: Station, effort: Effort, figures: Figures, number: int, name: str) -> None:
    jobs = effort.jobs_at(place.system.seen.get(name, place.system.expected_rate))
    figures.add("bulk", place.rate("enqueue-bulk", jobs))
    with place.workers(number) as workers:
        # A system slower than expected is measured by what it got done.
        if place.wait_for(jobs, effort.seconds * 5, workers):
            wait_until_finished(place)
        if number == 1:
            figures.add("memory_mib", workers.peak_mib())
    figures.add(name, rate(marks(place.folder), number))


def wait_until_finished(place: Station) -> None:
    deadline = time.monotonic() + FINISH_SECONDS
    while left := int(place.ask("left")):
        if time.monotonic() > deadline:
            raise Failed(f"{left:,} jobs had started but were not finished {FINISH_SECONDS:.0f} s later")


def rate(processes: list[list[Mark]], workers: int) -> float:
    """Jobs per second while all were at work, without the margins of that time."""
    if len(processes) < workers:
        raise Failed(f"of {workers} workers only {len(processes)} started a job")
    began = max(process[0].started for process in processes)
    ended = min(process[-1].started for process in processes)
    margin = (ended - began) * MARGIN
    began, ended = began + margin, ended - margin
    if ended <= began:
        raise Failed("the workers were never at work at the same time")
    return sum(began <= mark.started < ended for process in processes for mark in process) / (ended - began)


Measure = Callable[[Station, Effort, Figures], None]

PARTS: dict[Part, Measure] = {
    "singles": singles,
    "drain_by_one": drain_by_one,
    "drain_by_two": drain_by_two,
}
