"""Compare flows with peers, and define the target ratios. A peer that supports both databases is compared on each.
Keptwork on a server beside a peer on a file in its own process is shown without a target."""

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

IN_MEMORY = "parsl/threads"
"""What calls functions in the memory of one program, one after the other without a look at the disk. A flow whose steps
each have a job is not held to it: a sync for each step of a chain takes longer than all that Parsl does for one."""

BESIDE_IT = "keptwork inline/sqlite", "keptwork in code/unsynced"
"""What can do the same: a flow of steps without effects, on a file as Parsl has one; and steps in code, unsynced."""


def _targets() -> Iterator[Target]:
    """Each peer is to be behind what is as durable as it is: flows, and steps in code where that is how it is used."""
    peers = [system for system in SYSTEMS if not system.ours and system.label != IN_MEMORY]
    durable = [system for system in SYSTEMS if system.ours and system.engine != "unsynced"]
    databases = [system.engine for system in durable]
    for ours in durable:
        for peer in peers:
            if peer.engine == ours.engine or (peer.engine not in databases and ours.form != "in code"):
                yield from (Target(figure, ours.label, peer.label) for figure in SHEET.compared)
    yield from (Target(figure, label, IN_MEMORY) for label in BESIDE_IT for figure in SHEET.compared)


TARGETS = tuple(_targets())

OF_FLOWS = Comparison(SYSTEMS, PARTS, TARGETS, SHEET)
