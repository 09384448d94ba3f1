"""What is compared of workflows, and what Keptwork is to reach: beside its peers in the same run, and alone in flight
also below what was once seen of Restate, whatever that needs here (docs/decisions/0040-workflow-latency-bound.md)."""

from collections.abc import Iterator

from bench.peers.comparison import Comparison
from bench.peers.report import Sheet
from bench.peers.targets import Limit, Target, Wanted
from bench.workflows.catalogue import SYSTEMS
from bench.workflows.measurement import PARTS

ALONE_MS = 3.0

SHEET = Sheet(
    "Durable workflows of five steps, side by side",
    {"rate": "many in flight, workflows/s", "p50_ms": "alone p50, ms", "p95_ms": "p95, ms"},
    compared=("rate", "p50_ms", "p95_ms"),
    references={"restate/server": "p50_ms"},
)


def _targets() -> Iterator[Wanted]:
    for ours in (system.label for system in SYSTEMS if system.ours):
        yield Target("rate", ours, "absurd/postgres", 5.0)
        yield Target("rate", ours, "restate/server", 2.5)
        yield Target("p50_ms", ours, "restate/server")
        yield Limit("p50_ms", ours, ALONE_MS, SYSTEMS)


TARGETS = tuple(_targets())

OF_WORKFLOWS = Comparison(SYSTEMS, PARTS, TARGETS, SHEET)
