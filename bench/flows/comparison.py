"""What is compared of flows, and what Detent is to reach: beside a peer that can use either database, on the same one.
How Detent on a server stands beside a peer on a file in its own process is shown, and is no mark."""

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
    peers = [system for system in SYSTEMS if not system.ours and system.label != NOT_DURABLE]
    databases = [system.engine for system in SYSTEMS if system.ours]
    for ours in (system for system in SYSTEMS if system.ours):
        for peer in peers:
            if peer.engine == ours.engine or peer.engine not in databases:
                yield from (Target(figure, ours.label, peer.label) for figure in SHEET.compared)


TARGETS = tuple(_targets())

OF_FLOWS = Comparison(SYSTEMS, PARTS, TARGETS, SHEET)
