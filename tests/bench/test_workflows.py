"""The comparison of workflows is judged here by figures whose verdict is known, and by Keptwork's own program."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import environment
from bench.peers.catalogue import System
from bench.peers.comparison import compare
from bench.peers.engine import Engines
from bench.peers.measurement import Effort, Figures, measure, station
from bench.peers.processes import Failed
from bench.peers.targets import Limit, reference
from bench.workflows.catalogue import SYSTEMS
from bench.workflows.comparison import OF_WORKFLOWS, TARGETS
from bench.workflows.measurement import PARTS, insist_on_results
from bench.workflows.protocol import STEPS, Watch, one_by_one, one_by_one_awaited

OURS = System("keptwork", "sqlite", 100, program="workflows")
SHORT = Effort(seconds=1.0, timed=3, jobs=20)


def figures(**values: float) -> Figures:
    return Figures({name: [value] for name, value in values.items()})


def pins(name: str) -> list[str]:
    """The lines that say what is installed for a peer, as `package==version`."""
    folder = environment.PEERS / name
    if (folder / environment.PACKAGES).exists():
        wanted = json.loads((folder / environment.PACKAGES).read_text())["dependencies"]
        return [f"{package}=={version}" for package, version in wanted.items()]
    return (folder / "requirements.txt").read_text().split()


def test_every_workflow_system_has_a_program_and_pins_all_it_needs_without_an_address() -> None:
    for system in SYSTEMS:
        folder = environment.PEERS / system.name
        assert (folder / "workflows.py").exists() or (folder / "workflows.mjs").exists()
        if not system.ours:
            lines = pins(system.name)
            assert lines
            assert all(line.partition("==")[2][:1].isdigit() and "://" not in line for line in lines)


def test_keptwork_is_held_to_the_rates_and_the_time_of_its_peers_on_both_stores() -> None:
    ours = figures(rate=1000.0, p50_ms=2.9)
    enough = {"absurd/postgres": figures(rate=200.0), "restate/server": figures(rate=400.0, p50_ms=2.9)}
    assert all(target.met({"keptwork/postgres": ours, "keptwork/sqlite": ours} | enough) for target in TARGETS)
    short = {"absurd/postgres": figures(rate=201.0), "restate/server": figures(rate=401.0, p50_ms=2.8)}
    slow = figures(rate=1000.0, p50_ms=3.0)
    assert not any(target.met({"keptwork/postgres": slow, "keptwork/sqlite": slow} | short) for target in TARGETS)


def test_every_target_speaks_of_systems_that_are_measured_in_every_round() -> None:
    systems = {system.label: system for system in SYSTEMS}
    for target in TARGETS:
        assert all(systems[label].every_round for label in target.speaks_of)


def test_a_time_that_was_not_measured_is_not_below_its_limit() -> None:
    limit = Limit("p50_ms", "a", 3.0)
    assert not limit.met({})
    assert not limit.met({"a": Figures(trouble=["did not start"])})
    assert limit.told({"p50_ms": "alone p50, ms"}, {}) == ("alone p50, a", "< 3", "not measured")
    assert limit.told({"p50_ms": "alone p50, ms"}, {"a": figures(p50_ms=2.5)})[2] == "2.50"


def test_a_time_that_was_seen_elsewhere_is_as_much_longer_as_this_machine_is_slower() -> None:
    limit = Limit("p50_ms", "a", 3.0, (System("peer", "server", 1, {"rate": 100.0, "p50_ms": 3.0}),))
    slower = {"peer/server": figures(rate=75.0, p50_ms=30.0)}
    assert limit.met({"a": figures(p50_ms=3.9)} | slower)
    assert not limit.met({"a": figures(p50_ms=4.0)} | slower)
    assert limit.told({"p50_ms": "p50"}, {"a": figures(p50_ms=3.9)} | slower) == ("p50, a", "< 4 (3 there)", "3.90")
    faster = {"peer/server": figures(rate=200.0)}
    assert limit.met({"a": figures(p50_ms=2.9)} | faster)
    assert not limit.met({"a": figures(p50_ms=3.0)} | faster)


def test_a_time_once_seen_of_a_peer_is_told_beside_what_is_found_here() -> None:
    systems = [OURS, System("peer", "server", 1, {"rate": 100.0, "p50_ms": 3.0})]
    measured = {"keptwork/sqlite": figures(p50_ms=2.5), "peer/server": figures(rate=65.0, p50_ms=9.0)}
    told = reference("peer/server", "p50_ms", "alone p50, ms", systems, measured)
    assert told == (
        "alone p50, ms: once seen of peer/server 3. Here: keptwork/sqlite 2.50; peer/server 9.00; "
        "peers here reach 65% of the rates once seen, in the middle"
    )
    absent = {"keptwork/sqlite": figures(p50_ms=2.5), "peer/server": Figures(trouble=["not installed"])}
    told = reference("peer/server", "p50_ms", "alone p50, ms", systems, absent)
    assert told.endswith("Here: keptwork/sqlite 2.50; peer/server not measured")


@pytest.mark.acceptance
def test_workflows_are_timed_until_there_were_enough_or_the_time_is_over() -> None:
    assert len(one_by_one(lambda: STEPS, 3, 60).split()) == 3
    assert one_by_one(lambda: STEPS, 3, 0) == ""


async def test_workflows_that_are_awaited_are_timed_alike() -> None:
    async def run() -> int:
        return STEPS

    assert len((await one_by_one_awaited(run, 3, 60)).split()) == 3


def test_a_workflow_that_returns_something_else_is_not_counted() -> None:
    with pytest.raises(AssertionError, match="returned 4"):
        Watch(1, 1).lap(0.0, STEPS - 1)


@pytest.mark.acceptance
def test_keptwork_runs_workflows_on_a_file_of_its_own(tmp_path: Path) -> None:
    found = Figures()
    with Engines(tmp_path) as engines:
        measure(OURS, PARTS, engines, SHORT, found)
    assert found.trouble == []
    assert found.values.keys() == {"rate", "p50_ms", "p95_ms"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.acceptance
def test_a_system_that_keeps_no_results_of_steps_is_found_out(tmp_path: Path) -> None:
    with (
        Engines(tmp_path) as engines,
        station(OURS, engines) as place,
        pytest.raises(Failed, match="1 workflows of 5 steps ended, but only 0 results"),
    ):
        insist_on_results(place, 1)


@pytest.mark.acceptance
def test_a_peer_that_cannot_be_installed_is_named_and_its_targets_are_not_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(environment, "HOME", tmp_path / "nothing")
    systems = [system for system in SYSTEMS if system.label in ("keptwork/sqlite", "restate/server")]
    assert not compare(replace(OF_WORKFLOWS, systems=systems), None, SHORT, 2, None)
    said = capsys.readouterr().out
    assert "! restate/server: not installed: there is no npm; install Node" in said
    verdicts = [line for line in said.splitlines() if "beside restate/server" in line]
    assert len(verdicts) == 2
    assert all("not measured" in line and "not met" in line for line in verdicts)
