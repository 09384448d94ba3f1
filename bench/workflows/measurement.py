"""What is measured of a workflow system, on something empty.

Alone: single workflows one after the other, caller and worker in one process, from just before the call that starts one
until its result is here.

Many: a process works, another starts as many workflows as it can; the rate is that of the time from the first start
until the last one has ended. A few go before, so that starting up is in nobody's figure. (DBOS and Prefect run
workflows in the process that starts them.)

That results of steps were kept, and not only returned, is asked of the system afterwards.
"""

from bench.peers.catalogue import Part
from bench.peers.measurement import Effort, Figures, Measure
from bench.peers.processes import Failed, Station
from bench.workflows.protocol import STEPS

FEWEST = 8
WARM_SHARE = 0.05
PATIENCE = 3


def workflows(place: Station, effort: Effort, figures: Figures) -> None:
    """One after the other first, and then many at a time."""
    singles = alone(place, effort, figures)
    number = effort.jobs or max(int(place.system.expected_rate * effort.seconds), FEWEST)
    warm = max(int(number * WARM_SHARE), 1)
    with place.workers(1) as workers:
        place.ask("many", str(warm))
        figures.add("rate", place.rate("many", number))
        workers.check()
    insist_on_results(place, singles + warm + number)


def alone(place: Station, effort: Effort, figures: Figures) -> int:
    """Returns how many there were: a slow system gets as far as it gets."""
    said = place.ask("alone", str(effort.timed), str(int(effort.seconds * PATIENCE)))
    laps = sorted(float(lap) * 1000 for lap in said.split())
    if not laps:
        raise Failed("alone: no workflow ended in time")
    figures.add("p50_ms", laps[len(laps) // 2])
    figures.add("p95_ms", laps[len(laps) * 95 // 100])
    return len(laps)


def insist_on_results(place: Station, number: int) -> None:
    """A system may have run a workflow or two more, to see that it works."""
    kept = int(place.ask("kept"))
    if kept < number * STEPS:
        raise Failed(f"{number:,} workflows of {STEPS} steps ended, but only {kept:,} results of steps are kept")


PARTS: dict[Part, Measure] = {"workflows": workflows}
