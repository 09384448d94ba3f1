"""What is compared of flows, and what Detent is to reach."""

from collections.abc import Iterator

from bench.flows.catalogue import SYSTEMS
from bench.flows.measurement import PARTS
from bench.peers.comparison import Comparison
from bench.peers.report import Sheet
from bench.peers.targets import Target

SHEET = Sheet(
    "Flows of 1,000 steps that do nothing, side by side",
    {"wide": "wide, steps/s", "chain": "chain, steps/s"},
    compared=("wide", "chain"),
)

NOT_DURABLE = "parsl/threads"
"""Shown, and no mark: nothing of it leaves the memory of one process before the step after it has begun."""


def _targets() -> Iterator[Target]:
    peers = [system.label for system in SYSTEMS if not system.ours and system.label != NOT_DURABLE]
    for ours in (system.label for system in SYSTEMS if system.ours):
        for peer in peers:
            for figure in SHEET.compared:
                yield Target(figure, ours, peer)


TARGETS = tuple(_targets())

OF_FLOWS = Comparison(SYSTEMS, PARTS, TARGETS, SHEET)
