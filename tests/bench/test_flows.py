"""The comparison of flows is judged here by figures whose verdict is known, and by Detent's own program."""

from pathlib import Path

import pytest

from bench.flows.catalogue import SYSTEMS
from bench.flows.comparison import NOT_DURABLE, TARGETS
from bench.flows.measurement import PARTS
from bench.peers import environment
from bench.peers.catalogue import System
from bench.peers.engine import Engines
from bench.peers.measurement import Effort, Figures, measure
from tests.bench.test_workflows import figures, pins

OURS = System("detent", "sqlite", 100, program="flows")


def test_every_system_has_a_program_for_flows_and_pins_all_it_needs_without_an_address() -> None:
    for system in SYSTEMS:
        assert (environment.PEERS / system.name / "flows.py").exists()
        if not system.ours:
            assert all(line.partition("==")[2][:1].isdigit() and "://" not in line for line in pins(system.name))


def test_detent_is_held_to_the_rate_of_each_peer_that_keeps_its_results() -> None:
    peers = {target.peer for target in TARGETS}
    assert peers == {system.label for system in SYSTEMS if not system.ours} - {NOT_DURABLE}
    pairs = {(target.ours, target.peer) for target in TARGETS if target.peer.startswith("dbos")}
    assert pairs == {("detent/postgres", "dbos/postgres"), ("detent/sqlite", "dbos/sqlite")}
    ours = {label: figures(wide=100.0, chain=100.0) for label in ("detent/postgres", "detent/sqlite")}
    ahead = {peer: figures(wide=99.0, chain=99.0) for peer in peers}
    behind = {peer: figures(wide=101.0, chain=101.0) for peer in peers}
    assert all(target.met(ours | ahead) for target in TARGETS)
    assert not any(target.met(ours | behind) for target in TARGETS)


@pytest.mark.timeout(60)
def test_detent_runs_flows_of_both_shapes_on_a_file_of_its_own(tmp_path: Path) -> None:
    found = Figures()
    with Engines(tmp_path) as engines:
        measure(OURS, PARTS, engines, Effort(seconds=1.0, jobs=20), found)
    assert found.trouble == []
    assert found.values.keys() == {"wide", "chain"}
