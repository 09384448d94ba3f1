"""Every state that one job, its lease and a few workers can get into, and every way to break the rules on the way.

`-s` shows the figures and, for each broken twin, the shortest way to break each invariant.
"""

import gc

import pytest

from tests.model.explore import Bounds, Explorer, Report
from tests.model.scenes import along
from tests.model.twins import TWINS, Twin
from tests.model.world import Rules

# Two halves that together use every move of every actor, each small enough to be explored in seconds.
SUCCESS_AND_RETRY = frozenset(
    {"worker snooze", "worker fail", "worker dead_letter", "worker cancel", "operator release", "operator dead_letter"}
)
FAILURE_AND_SNOOZE = frozenset({"worker succeed", "worker retry", "worker release", "operator cancel"})
TWIN_STATES = 12_000


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "rules",
    [Rules(left_out=SUCCESS_AND_RETRY), Rules(on_exhausted="fail", left_out=FAILURE_AND_SNOOZE, pauses=False)],
    ids=["success-and-retry", "failure-and-snooze"],
)
def test_no_order_of_events_breaks_an_invariant_between_two_workers(rules: Rules):
    report = explored(rules, Bounds(workers=2))
    assert report.states > 50_000
    assert {"crash", "tick", "claim, reply lost", "stray renew", "ask expire by reaper"} <= set(report.kinds)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("on_exhausted", ["dead_letter", "fail"])
def test_no_order_of_events_breaks_an_invariant_with_every_move_of_two_workers(on_exhausted: str):
    report = explored(Rules(on_exhausted=on_exhausted), Bounds(workers=2))
    assert report.states > 500_000


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_no_order_of_events_breaks_an_invariant_with_two_stray_messages():
    explored(Rules(left_out=SUCCESS_AND_RETRY, pauses=False), Bounds(workers=2, strays=2))


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_no_order_of_events_breaks_an_invariant_between_three_workers():
    explored(Rules(left_out=SUCCESS_AND_RETRY), Bounds(workers=3))


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_a_twin_with_one_guard_removed_is_caught(twin: Twin):
    with twin.rules(left_out=SUCCESS_AND_RETRY, pauses=False) as rules:
        explorer = Explorer(rules, Bounds(workers=2, states=TWIN_STATES))
        report = explorer.run(ends=False)
        print(f"\n{twin.name}: {len(report.broken)} invariants broken within {report.states:,} states")
        for name, way in report.broken.items():
            print(f"  broken: {name}", *(f"    {act}" for act in along(explorer, way)), sep="\n")
    assert twin.caught_by in report.broken


def test_the_guard_is_back_after_a_twin():
    for twin in TWINS:
        with twin.rules():
            pass
    assert not Explorer(Rules(pauses=False), Bounds(states=2_000)).run(ends=False).broken


def explored(rules: Rules, bounds: Bounds) -> Report:
    """A complete exploration in which nothing was found, and from whose every state the job can end."""
    explorer = Explorer(rules, bounds)
    report = explorer.run()
    print(f"\n{bounds.workers} workers, policy {rules.on_exhausted}: {report}")
    for name, way in report.broken.items():
        print(f"  broken: {name}", *(f"    {act}" for act in along(explorer, way)), sep="\n")
    gc.collect()
    assert (report.broken, report.stuck, report.complete) == ({}, 0, True)
    return report
