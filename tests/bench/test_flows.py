"""The comparison of flows is judged here by figures whose verdict is known, and by Keptwork's own program."""

from pathlib import Path

import pytest

from bench.flows.catalogue import SYSTEMS
from bench.flows.comparison import BESIDE_IT, IN_MEMORY, TARGETS
from bench.flows.measurement import PARTS
from bench.peers import environment
from bench.peers.catalogue import System
from bench.peers.engine import Engines
from bench.peers.measurement import Effort, Figures, measure
from tests.bench.test_workflows import figures, pins

OURS = [system for system in SYSTEMS if system.ours and system.engine != "postgres"]


def test_every_system_has_a_program_for_flows_and_pins_all_it_needs_without_an_address() -> None:
    for system in SYSTEMS:
        assert (environment.PEERS / system.name / f"{system.program}.py").exists()
        if not system.ours:
            assert all(line.partition("==")[2][:1].isdigit() and "://" not in line for line in pins(system.name))


def test_keptwork_is_held_to_the_rate_of_each_peer_by_what_is_as_durable_as_it_is() -> None:
    peers = {system.label for system in SYSTEMS if not system.ours}
    assert {target.peer for target in TARGETS} == peers
    assert {target.ours for target in TARGETS} == {system.label for system in SYSTEMS if system.ours}
    assert {target.ours for target in TARGETS if target.peer == "dbos/sqlite"} == {
        "keptwork/sqlite",
        "keptwork inline/sqlite",
        "keptwork in code/sqlite",
    }
    assert {target.ours for target in TARGETS if target.peer == IN_MEMORY} == set(BESIDE_IT)
    assert {target.peer for target in TARGETS if target.ours == "keptwork in code/unsynced"} == {IN_MEMORY}


def test_a_flow_is_held_to_every_peer() -> None:
    flows = {system.label for system in SYSTEMS if system.ours and system.form != "in code"}
    assert {target.peer for target in TARGETS if target.ours in flows} == {
        system.label for system in SYSTEMS if not system.ours
    }


def test_who_is_behind_a_peer_in_a_single_figure_does_not_meet_that_target() -> None:
    ours = {system.label: figures(wide=100.0, chain=100.0) for system in SYSTEMS if system.ours}
    ahead = {target.peer: figures(wide=99.0, chain=99.0) for target in TARGETS}
    behind = {target.peer: figures(wide=101.0, chain=101.0) for target in TARGETS}
    assert all(target.met(ours | ahead) for target in TARGETS)
    assert not any(target.met(ours | behind) for target in TARGETS)


@pytest.mark.acceptance
@pytest.mark.timeout(60)
@pytest.mark.parametrize("system", OURS, ids=lambda system: system.label)
def test_keptwork_runs_flows_of_both_shapes_on_a_file_of_its_own(tmp_path: Path, system: System) -> None:
    found = Figures()
    with Engines(tmp_path) as engines:
        measure(system, PARTS, engines, Effort(seconds=1.0, jobs=20), found)
    assert found.trouble == []
    assert found.values.keys() == {"wide", "chain"}
