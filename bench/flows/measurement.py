"""What is measured of a system that runs flows, each shape on something empty.

Steps a second, from just before the call that starts the flow until whoever called knows that it has ended. A flow of a
few steps goes before in the same process, so that starting up is in nobody's figure. Slow systems get fewer steps,
which is no disadvantage to them. That results of steps were kept, and not only returned, is asked of the system
afterwards.
"""

from collections.abc import Callable

from bench.flows.protocol import WARM
from bench.peers.catalogue import Part
from bench.peers.measurement import Effort, Figures, Measure
from bench.peers.processes import Failed, Station

STEPS = 1_000
FEWEST = 100
PATIENCE_SECONDS = 20


def shape(verb: str) -> Callable[[Station, Effort, Figures], None]:
    """A measurement of one shape."""

    def measure(place: Station, effort: Effort, figures: Figures) -> None:
        number = effort.jobs or max(FEWEST, min(STEPS, int(place.system.expected_rate * PATIENCE_SECONDS)))
        with place.workers(1) as workers:
            figures.add(verb, place.rate(verb, number))
            workers.check()
        kept = int(place.ask("kept"))
        if kept < number + WARM:
            raise Failed(f"{number + WARM:,} steps ended, but only {kept:,} results of steps are kept")

    return measure


PARTS: dict[Part, Measure] = {"wide": shape("wide"), "chain": shape("chain")}
