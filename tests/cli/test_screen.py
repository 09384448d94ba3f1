"""What commands print: times, tables and text that comes from elsewhere."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.cli import screen

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("past_s", "words"),
    [
        (0, "now"),
        (1, "1 s ago"),
        (59, "59 s ago"),
        (60, "1 min ago"),
        (3_599, "59 min ago"),
        (3_600, "1 h ago"),
        (86_399, "23 h ago"),
        (200_000, "2 d ago"),
        (-5, "in 5 s"),
        (-7_200, "in 2 h"),
    ],
)
def test_how_long_ago(past_s, words):
    assert screen.ago(10**15 - past_s * SECOND, 10**15) == words


def test_no_time_is_a_dash():
    assert (screen.moment(None), screen.ago(None, 0)) == ("–", "–")


@given(st.integers(0, 4 * 10**15), st.integers(0, 4 * 10**15))
def test_moments_sort_as_their_times_do(one, other):
    assert (screen.moment(one) <= screen.moment(other)) == (one // 1000 <= other // 1000)


def test_brackets_from_elsewhere_are_printed_as_they_are(capsys):
    screen.stdout.cache_clear()
    table = screen.table("what")
    table.add_row("[red]stop[/red] :smile: [/nonsense]")
    screen.emit({}, lambda: table, as_json=False)
    screen.emit({}, lambda: "[bold]x[/] " + "y" * 500, as_json=False)
    printed = capsys.readouterr().out
    screen.stdout.cache_clear()
    assert "[red]stop[/red] :smile: [/nonsense]" in printed
    assert "[bold]x[/] " + "y" * 500 in printed


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(screen).failed == 0
