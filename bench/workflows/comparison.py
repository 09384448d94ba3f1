"""What is compared of workflows, and what Detent is to reach: always beside a peer in the same run. What was once seen
of Restate alone in flight, 3 ms, is told beside what it needs here; it was seen on another machine."""

from collections.abc import Iterator

from bench.peers.comparison import Comparison
from bench.peers.report import Sheet
from bench.peers.targets import Target
from bench.workflows.catalogue import SYSTEMS
from bench.workflows.measurement import PARTS

SHEET = Sheet(
    "Durable workflows of five steps, side by side",
    {"rate": "many in flight, workflows/s", "p50_ms": "alone p50, ms", "p95_ms": "p95, ms"},
    compared=("rate", "p50_ms", "p95_ms"),
    references={"restate/server": "p50_ms"},
)


def _targets() -> Iterator[Target]:
    for ours in (system.label for system in SYSTEMS if system.ours):
        yield Target("rate", ours, "absurd/postgres", 5.0)
        yield Target("rate", ours, "restate/server", 2.5)
        yield Target("p50_ms", ours, "restate/server")


TARGETS = tuple(_targets())

OF_WORKFLOWS = Comparison(SYSTEMS, PARTS, TARGETS, SHEET)
