"""The comparison with peers is judged here by figures whose verdict is known, and by Keptwork's own program."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.peers import environment
from bench.peers.catalogue import SYSTEMS, Part, System
from bench.peers.engine import Engines
from bench.peers.measurement import Effort, Figures, Measure, drain_by_one, measure, rate, singles, to_start_ms
from bench.peers.processes import Failed, Station, last_line
from bench.peers.tally import Mark, Tally, counted, marks
from bench.peers.targets import TARGETS, Target, advantage, not_at_their_best

OURS = System("keptwork", "sqlite", 1000)


def figures(**values: float) -> Figures:
    return Figures({name: [value] for name, value in values.items()})


def steady(began: float, ended: float, every: float) -> list[Mark]:
    return [Mark(began + number * every, 0.0) for number in range(int((ended - began) / every) + 1)]


FORKS = """
import os, sys
from bench.peers.tally import Tally
tally = Tally(sys.argv[1])
tally.mark()
child = os.fork()
tally.mark(7.0)
if child:
    os.waitpid(child, 0)
"""


@pytest.mark.acceptance
def test_marks_of_threads_are_all_counted(tmp_path: Path) -> None:
    tally = Tally(str(tmp_path))

    def work() -> None:
        for _ in range(500):
            tally.mark()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(tmp_path) == 2000
    assert [len(process) for process in marks(tmp_path)] == [2000]


@pytest.mark.acceptance
def test_a_forked_process_keeps_marks_of_its_own(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", FORKS, str(tmp_path)], check=True, cwd=environment.ROOT)
    assert sorted([mark.sent for mark in process] for process in marks(tmp_path)) == [[0.0, 7.0], [7.0]]


def test_a_drain_is_judged_by_the_time_in_which_every_worker_worked() -> None:
    alone, late = steady(0.0, 10.0, 0.01), steady(5.0, 10.0, 0.01)
    assert rate([alone], 1) == pytest.approx(100, rel=0.02)
    assert rate([alone, late], 2) == pytest.approx(200, rel=0.02)


def test_a_worker_that_started_nothing_is_not_counted_as_one_that_helped() -> None:
    with pytest.raises(Failed, match="of 2 workers only 1"):
        rate([steady(0.0, 1.0, 0.01)], 2)
    with pytest.raises(Failed, match="never at work at the same time"):
        rate([steady(0.0, 1.0, 0.01), steady(2.0, 3.0, 0.01)], 2)


def test_jobs_that_waited_for_their_worker_to_start_are_left_out() -> None:
    probes = [Mark(started=9.0, sent=float(number)) for number in range(5)]
    timed = [Mark(started=10.002 + number, sent=10.0 + number) for number in range(3)]
    assert to_start_ms(probes + timed) == pytest.approx([2.0, 2.0, 2.0])


def test_a_target_is_met_by_a_rate_above_or_a_time_below_the_peers() -> None:
    measured = {"a": figures(drain=100.0, p50_ms=2.0), "b": figures(drain=90.0, p50_ms=1.7)}
    assert Target("drain", "a", "b").met(measured)
    assert not Target("drain", "a", "b", 4.0).met(measured)
    assert not Target("p50_ms", "a", "b").met(measured)
    assert Target("p50_ms", "a", "b", 1 / 1.25).met(measured)


def test_less_memory_is_an_advantage() -> None:
    measured = {"a": figures(memory_mib=30.0), "b": figures(memory_mib=60.0)}
    assert advantage(measured, "memory_mib", "a", "b") == 2.0


def test_what_was_not_measured_is_not_met() -> None:
    assert not Target("drain", "a", "b").met({"a": figures(drain=100.0), "b": Figures(trouble=["did not start"])})


def test_a_peer_behind_the_others_is_called_misconfigured_and_a_slow_machine_is_not() -> None:
    peers = [System(name, "postgres", 1, {"drain": 1000.0}) for name in ("one", "two", "three")]
    slow_machine = {peer.label: figures(drain=500.0) for peer in peers}
    assert not_at_their_best(peers, slow_machine) == []
    (doubt,) = not_at_their_best(peers, slow_machine | {"two/postgres": figures(drain=390.0)})
    assert doubt.startswith("two/postgres reaches 39% of the drain once seen, the peers here 50%")


def test_every_target_speaks_of_systems_that_are_measured_in_every_round() -> None:
    systems = {system.label: system for system in SYSTEMS}
    for target in TARGETS:
        assert systems[target.ours].every_round
        assert target.figure == "p50_ms" or systems[target.peer].every_round


def test_every_peer_has_a_program_and_pins_all_it_needs_without_an_address() -> None:
    for system in SYSTEMS:
        folder = environment.ROOT / "bench" / "peers" / system.name
        assert (folder / "program.py").exists()
        if not system.ours:
            lines = (folder / "requirements.txt").read_text().split()
            assert lines
            assert all("==" in line and "://" not in line for line in lines)


@pytest.mark.acceptance
def test_keptwork_is_measured_on_a_file_of_its_own(tmp_path: Path) -> None:
    found = Figures()
    with Engines(tmp_path) as engines:
        parts: dict[Part, Measure] = {"singles": singles, "drain_by_one": drain_by_one}
        measure(OURS, parts, engines, Effort(seconds=0.5, timed=5, jobs=600), found)
    assert found.trouble == []
    assert {"bulk", "single", "drain", "p50_ms", "p95_ms", "idle_cpu", "memory_mib"} == found.values.keys()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.acceptance
def test_a_program_that_fails_is_told_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"setup: .*nothing://"):
        Station(OURS, "nothing://", tmp_path).ask("setup")


@pytest.mark.acceptance
def test_a_worker_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    place = Station(OURS, "nothing://", tmp_path)
    with place.workers(1) as workers, pytest.raises(Failed, match=r"a worker ended with 1: .*nothing://"):
        place.wait_for(1, 60, workers)


def test_the_last_line_that_says_something_is_told() -> None:
    assert last_line("first\nsecond\n\n") == "second"
    assert last_line("") == "it said nothing"
