"""Events as bars on an axis."""

from __future__ import annotations

import doctest

import pytest

from keptwork.core.lifecycles import JOB
from keptwork.dashboard import charts as module
from keptwork.dashboard.charts import MOST_ROUNDS, MOST_TICKS, THINNEST, timeline
from keptwork.store import Event

S = 1_000_000


def story(*moves: tuple[str, float] | tuple[str, float, str]) -> list[Event]:
    """Events of a job: the trigger, the second it happened in, and why."""
    events, state = [], None
    for seq, (trigger, second, *reason) in enumerate(moves):
        move = JOB.move(trigger)
        why, at = (reason[0] if reason else None), int(second * S)
        told = (seq, 1, "job", 7, seq, 0, move.event, trigger, at, None, None, None, None, why, state)
        events.append(Event(*told, move.target.name, None, 1, ""))
        state = move.target.name
    return events


def test_the_examples_are_true():
    assert doctest.testmod(module).failed == 0


def test_each_time_in_the_queue_is_a_line_and_each_stay_a_bar_on_the_same_axis():
    drawn = timeline(
        story(
            ("enqueue", 0),
            ("claim", 2),
            ("start", 3),
            ("retry", 5, "no answer"),
            ("claim", 9),
            ("start", 9),
            ("succeed", 10),
        ),
        now=99 * S,
    )
    assert drawn is not None
    assert [one.says for one in drawn.rounds] == ["1 · retry: no answer", "2 · succeeded"]
    first, second = ([(bar.look, bar.x, bar.width) for bar in one.bars] for one in drawn.rounds)
    assert first == [("waiting", 0, 20), ("taken", 20, 10), ("bad", 30, 20)]
    assert second == [("waiting", 50, 40), ("good", 90, 10)]
    assert drawn.rounds[0].bars[2].says == ("running for 2.0 s, from 1970-01-01 00:00:03.000Z; then retry (no answer)")
    assert [tick.says for tick in drawn.ticks] == ["0", "2.0 s", "4.0 s", "6.0 s", "8.0 s", "10.0 s"]
    assert (drawn.ticks[0].anchor, drawn.ticks[-1].anchor) == ("start", "end")


def test_what_goes_on_is_drawn_to_this_moment():
    drawn = timeline(story(("enqueue", 0), ("claim", 1), ("start", 1)), now=4 * S)
    assert drawn is not None
    assert [(bar.look, bar.x, bar.width) for bar in drawn.rounds[0].bars] == [("waiting", 0, 25), ("busy", 25, 75)]
    assert drawn.rounds[0].says == "1 · running"
    assert "so far" in drawn.rounds[0].bars[1].says


ENDINGS = {"succeed": "good", "fail": "bad", "dead_letter": "bad", "cancel": "gone", "expire": "bad", "release": "gone"}


@pytest.mark.parametrize(("ending", "look"), ENDINGS.items())
def test_what_came_of_running_colours_it(ending: str, look: str):
    drawn = timeline(story(("enqueue", 0), ("claim", 0), ("start", 0), (ending, 1)), now=1 * S)
    assert drawn is not None
    assert [bar.look for bar in drawn.rounds[0].bars] == [look]


def test_a_bar_of_no_time_is_seen_and_stays_on_the_axis():
    drawn = timeline(story(("enqueue", 0), ("claim", 3_600), ("start", 3_600), ("succeed", 3_600.001)), now=0)
    assert drawn is not None
    last = drawn.rounds[0].bars[-1]
    assert last.width == THINNEST
    assert last.x + last.width <= 100


def test_a_clock_that_went_back_bends_nothing():
    drawn = timeline(story(("enqueue", 5), ("claim", 4), ("start", 4)), now=1 * S)
    assert drawn is not None
    assert all(0 <= bar.x <= 100 and bar.width > 0 for one in drawn.rounds for bar in one.bars)


def test_of_many_rounds_the_last_are_drawn_and_the_others_counted():
    rounds = [move for n in range(100) for move in (("claim", n), ("start", n), ("snooze", n + 0.5, "x" * 500))]
    drawn = timeline(story(("enqueue", 0), *rounds), now=100 * S)
    assert drawn is not None
    assert (len(drawn.rounds), drawn.earlier) == (MOST_ROUNDS, 101 - MOST_ROUNDS)
    assert drawn.rounds[0].says.startswith(f"{101 - MOST_ROUNDS + 1} · snooze: xxx")
    assert max(len(one.says) for one in drawn.rounds) < 120
    assert len(drawn.ticks) <= MOST_TICKS + 1


@pytest.mark.parametrize("length", [1, 999, 60 * S, 86_400 * S, 400 * 86_400 * S, 10**18])
def test_however_long_it_took_there_is_a_handful_of_marks(length: int):
    drawn = timeline(story(("enqueue", 0)), now=length)
    assert drawn is not None
    assert 1 < len(drawn.ticks) <= MOST_TICKS + 1


def test_of_nothing_there_is_nothing():
    assert timeline([], now=1) is None
