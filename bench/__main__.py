"""`make bench`: run every benchmark, or those named (`make bench ARGS="peers --only keptwork,rq"`)."""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from bench import history, lifecycle, limits, memory, pruning, run
from bench.flows.comparison import OF_FLOWS
from bench.http import comparison as http
from bench.peers.comparison import OF_JOBS, Comparison, compare
from bench.peers.measurement import Effort
from bench.workflows.comparison import OF_WORKFLOWS

Measure = Callable[[float, int], bool]


def plain(measure: Measure) -> Callable[[argparse.Namespace], bool]:
    """A measurement that asks for nothing but its length and how often to run."""
    return lambda options: measure(options.seconds or 3.0, options.rounds or 5)


def beside_peers(comparison: Comparison) -> Callable[[argparse.Namespace], bool]:
    """A measurement of Keptwork and of those it is compared with."""

    def measure(options: argparse.Namespace) -> bool:
        effort = Effort(options.seconds or 4.0, jobs=options.jobs)
        rounds = options.rounds or 3
        if options.quick:
            effort, rounds = Effort(options.seconds or 1.5, timed=50, jobs=options.jobs), options.rounds or 1
        return compare(comparison, options.only, effort, rounds, options.json)

    return measure


MEASUREMENTS: dict[str, Callable[[argparse.Namespace], bool]] = {
    "lifecycle": plain(lifecycle.measure),
    "peers": beside_peers(OF_JOBS),
    "workflows": beside_peers(OF_WORKFLOWS),
    "flows": beside_peers(OF_FLOWS),
    "history": plain(history.measure),
    "memory": plain(memory.measure),
    "pruning": plain(pruning.measure),
    "limits": plain(limits.measure),
    "run": plain(run.measure),
    "http": plain(http.measure),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MEASUREMENTS), help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument(
        "--seconds", type=float, help="how long each single run takes (lifecycle 3, peers and workflows 4)"
    )
    parser.add_argument(
        "--rounds", type=int, help="how often each is run, turn by turn (lifecycle 5, peers, workflows and flows 3)"
    )
    parser.add_argument(
        "--only", type=systems, metavar="A,B", help="peers, workflows, flows: these systems, such as absurd,keptwork"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="peers, workflows, flows: so many in every drain or flow")
    parser.add_argument("--quick", action="store_true", help="peers, workflows, flows: one short round")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="peers, workflows, flows: keep all figures of all rounds"
    )
    options = parser.parse_args()
    # Told to end, it ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if unknown := set(options.names) - set(MEASUREMENTS):
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    failed = [name for name in options.names if not MEASUREMENTS[name](options)]
    if failed:
        sys.exit(f"below the mark: {', '.join(failed)}")


def systems(text: str) -> list[str]:
    known = {system.name for comparison in (OF_JOBS, OF_WORKFLOWS, OF_FLOWS) for system in comparison.systems}
    if unknown := set(text.split(",")) - known:
        raise argparse.ArgumentTypeError(
            f"no such system: {', '.join(sorted(unknown))}; there are {', '.join(sorted(known))}"
        )
    return text.split(",")


main()
