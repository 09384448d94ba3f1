"""The database against the tables typed by hand in expected.py: every state × trigger × target, through raw SQL."""

from __future__ import annotations

import pytest

from tests.lifecycle.expected import EXPECTED
from tests.store.guard_check import allowance_breaches, event_breaches, grid_breaches, refusal_breaches


@pytest.mark.parametrize("name", EXPECTED)
def test_each_illegal_move_is_refused_and_each_legal_one_is_logged_once(trying, name):
    assert list(grid_breaches(trying, name)) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_nothing_else_changes_a_row(trying, name):
    assert list(refusal_breaches(trying, name)) == []


@pytest.mark.parametrize("name", EXPECTED)
def test_what_a_hand_may_do_is_written_down(trying, name):
    assert list(allowance_breaches(trying, name)) == []


def test_nothing_changes_the_log(trying):
    assert list(event_breaches(trying)) == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_client_with_recursive_triggers_finds_the_same_guards(hand):
    hand.run("PRAGMA recursive_triggers = ON")
    for name in EXPECTED:
        for breaches in (refusal_breaches, allowance_breaches):
            hand.run("BEGIN")
            assert list(breaches(hand, name)) == []
            hand.run("ROLLBACK")
