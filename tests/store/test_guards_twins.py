"""Broken twins: the database with one trigger taken away. Whichever it is, the checker must notice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import pytest

from tests.lifecycle.expected import EXPECTED
from tests.store.guard_check import allowance_breaches, event_breaches, grid_breaches, refusal_breaches
from tests.store.hands import Hand

GROUPS = (*EXPECTED, "events")
# Without these something happens that must not; the others only write down, or are the second lock behind another.
HOLDS_ALONE = ("_born", "_moves", "_fixed", "_kept", "_no_truncate", "_no_change", "_no_update", "_no_delete", "_true")


def group_of(trigger: str) -> str:
    """The lifecycle a trigger guards: the longest name it begins with."""
    fitting = [name for name in GROUPS if trigger.startswith(f"keptwork_{name.replace('-', '_')}_")]
    return max(fitting, key=len)


def breaches(hand: Hand, group: str) -> Iterator[str]:
    if group == "events":
        return event_breaches(hand)
    return chain(refusal_breaches(hand, group), allowance_breaches(hand, group))


def noticed(hand: Hand, trigger: str, table: str) -> str | None:
    """What the checker says first of a database without this trigger; where it holds alone, what came through."""
    hand.run("SAVEPOINT twin")
    for name in _locks(trigger):
        hand.drop(name, table)
    came_through = "let through" if trigger.endswith(HOLDS_ALONE) else ""
    found = next((breach for breach in breaches(hand, group_of(trigger)) if came_through in breach), None)
    hand.run("ROLLBACK TO twin")
    return found


@pytest.mark.acceptance
@pytest.mark.parametrize("group", GROUPS)
def test_every_trigger_is_missed_when_it_is_gone(trying, group):
    triggers = [(name, table) for name, table in trying.triggers() if group_of(name) == group]
    unnoticed = [name for name, table in triggers if noticed(trying, name, table) is None]
    assert triggers
    assert unnoticed == []


@pytest.mark.parametrize("name", EXPECTED)
def test_the_grid_is_missed_when_the_guard_of_moves_is_gone(trying, name):
    table = next(table for trigger, table in trying.triggers() if trigger == _moves(name))
    trying.drop(_moves(name), table)
    illegal = (breach for breach in grid_breaches(trying, name) if "let through" in breach)
    wanted = 2 * len(EXPECTED[name].moves)
    assert len(list(islice(illegal, wanted))) == wanted


def test_every_trigger_there_is_belongs_to_a_group(hand):
    assert {group_of(name) for name, _ in hand.triggers()} == set(GROUPS)


def _locks(trigger: str) -> list[str]:
    """Two kinds of steps share a table, and either kind's trigger keeps it from being truncated: both must go."""
    if trigger.endswith("_step_no_truncate"):
        return ["keptwork_run_step_no_truncate", "keptwork_workstream_step_no_truncate"]
    return [trigger]


def _moves(name: str) -> str:
    return f"keptwork_{name.replace('-', '_')}_moves"
