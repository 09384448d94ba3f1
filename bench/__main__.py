"""`make bench`: every measurement, or those named on the command line (`make bench ARGS=lifecycle`)."""

import argparse
import sys

from bench import history, lifecycle, memory, pruning

MEASUREMENTS = {
    "lifecycle": lifecycle.measure,
    "history": history.measure,
    "memory": memory.measure,
    "pruning": pruning.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(MEASUREMENTS), help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each single run takes")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is run, turn by turn")
    options = parser.parse_args()
    if unknown := set(options.names) - set(MEASUREMENTS):
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    failed = [name for name in options.names if not MEASUREMENTS[name](options.seconds, options.rounds)]
    if failed:
        sys.exit(f"below the mark: {', '.join(failed)}")


main()
