"""Rules and their ticks: time zones, changes of the clocks, what is due after a while without anybody."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from keptwork.core.schedule_rules import (
    MOST_MISSED,
    Firing,
    Rule,
    correlation,
    due,
    last_ticks,
    next_tick,
    next_ticks,
    tick_of,
)
from keptwork.errors import BadInput

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
BERLIN = "Europe/Berlin"


def us(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000


def utc(ticks: list[int]) -> list[str]:
    return [f"{datetime.fromtimestamp(tick / 1_000_000, UTC):%d %H:%M}" for tick in ticks]


def test_ticks_are_where_the_fields_match():
    rule = Rule.of(cron="*/20 9 * * mon")
    assert utc(next_ticks(rule, us("2026-11-13"), 4)) == ["16 09:00", "16 09:20", "16 09:40", "23 09:00"]


def test_a_tick_is_later_than_the_time_it_is_asked_for():
    rule, tick = Rule.of(cron="* * * * *"), us("2026-11-13T09:01")
    assert next_tick(rule, tick - 1) == tick
    assert next_tick(rule, tick) == tick + MINUTE


def test_the_ticks_of_an_interval_are_its_multiples_since_1970():
    rule = Rule.of(every="15m")
    assert utc(next_ticks(rule, us("2026-11-13T09:01"), 3)) == ["13 09:15", "13 09:30", "13 09:45"]
    assert next_tick(rule, us("2026-11-13T09:15")) == us("2026-11-13T09:30")


def test_an_expression_is_read_in_its_zone():
    assert utc(next_ticks(Rule.of(cron="0 9 * * *", tz=BERLIN), us("2026-03-27"), 3)) == [
        "27 08:00",
        "28 08:00",
        "29 07:00",  # summer has begun
    ]


# --- clocks that are changed. In Berlin 02:00–03:00 is skipped on 29 March 2026, and comes twice on 25 October.


def test_a_fixed_time_that_is_skipped_runs_at_the_first_minute_after():
    rule = Rule.of(cron="30 2 * * *", tz=BERLIN)
    assert utc(next_ticks(rule, us("2026-03-28"), 3)) == ["28 01:30", "29 01:00", "30 00:30"]


def test_two_fixed_times_that_are_skipped_run_once():
    rule = Rule.of(cron="0,30 2 * * *", tz=BERLIN)
    assert utc(next_ticks(rule, us("2026-03-29"), 3)) == ["29 01:00", "30 00:00", "30 00:30"]


def test_a_fixed_time_that_comes_twice_runs_the_first_time():
    rule = Rule.of(cron="30 2 * * *", tz=BERLIN)
    assert utc(next_ticks(rule, us("2026-10-24"), 3)) == ["24 00:30", "25 00:30", "26 01:30"]


def test_asked_in_the_second_of_two_equal_hours_a_fixed_time_does_not_go_back_to_the_first():
    rule = Rule.of(cron="30 2 * * *", tz=BERLIN)
    assert utc([next_tick(rule, us("2026-10-25T01:15"))]) == ["26 01:30"]
    assert utc(last_ticks(rule, 0, us("2026-10-25T01:15"), 1)) == ["25 00:30"]


def test_an_expression_with_a_star_goes_by_elapsed_time():
    half_hourly = Rule.of(cron="*/30 * * * *", tz=BERLIN)
    ticks = next_ticks(half_hourly, us("2026-10-25T00:00") - 1, 6)
    assert {later - earlier for earlier, later in pairwise(ticks)} == {30 * MINUTE}
    in_that_hour = Rule.of(cron="*/30 2 * * *", tz=BERLIN)
    assert utc(next_ticks(in_that_hour, us("2026-10-25"), 4)) == ["25 00:30", "25 01:00", "25 01:30", "26 01:00"]
    assert utc(next_ticks(in_that_hour, us("2026-03-29"), 1)) == ["30 00:00"]


EXPRESSIONS = ["* * * * *", "*/7 * * * *", "30 2 * * *", "0,30 2,3 * * *", "15 */2 * * *", "0 3 * * sun", "59 23 L * *"]


@pytest.mark.parametrize("cron", EXPRESSIONS)
@pytest.mark.parametrize("tz", ["UTC", BERLIN, "Asia/Beirut"])
@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_ticks_read_backwards_are_those_read_forwards(cron, tz, day):
    """Three days around changes of the clocks, from moments of every kind."""
    rule, start, end = Rule.of(cron=cron, tz=tz), us(day) - DAY, us(day) + 2 * DAY
    ticks, at = [], start
    while (at := next_tick(rule, at)) <= end:
        ticks.append(at)
    assert last_ticks(rule, start + 1, end, 10_000) == ticks
    chance = random.Random(cron + tz + day)
    for _ in range(20):
        now = chance.choice([*ticks, chance.randrange(start, end)])
        assert last_ticks(rule, start + 1, now, 1) == [tick for tick in ticks if tick <= now][-1:]
        assert next_tick(rule, now) > now
        assert next_tick(rule, now) == next((tick for tick in ticks if tick > now), next_tick(rule, end))


def test_ticks_agree_with_a_look_at_every_minute():
    """Worked out in another way: no zone, no cronsim, every minute of two days of which one is set back."""
    rule, start = Rule.of(cron="*/5 8-18 * * 1-6", tz=BERLIN), us("2026-10-23")
    every_minute = [start + n * MINUTE for n in range(1, 3 * 24 * 60)]
    local = {at: datetime.fromtimestamp(at // 1_000_000, ZoneInfo(BERLIN)) for at in every_minute}
    expected = [at for at, t in local.items() if t.minute % 5 == 0 and 8 <= t.hour <= 18 and t.isoweekday() != 7]
    assert next_ticks(rule, start, len(expected)) == expected


# --- what is due


def test_on_time_every_policy_fires_its_one_tick():
    rule, tick = Rule.of(every="1m"), us("2026-11-13T09:01")
    for policy in ("latest", "all", "none"):
        assert due(rule, policy, tick, tick - MINUTE, tick + 5) == Firing([tick], tick + MINUTE)


def test_after_an_hour_without_anybody_each_policy_does_as_it_says():
    rule, first = Rule.of(cron="*/10 * * * *"), us("2026-11-13T09:00")
    now = first + HOUR + 5 * MINUTE
    assert due(rule, "latest", first, None, now) == Firing([first + HOUR], first + HOUR + 10 * MINUTE)
    assert due(rule, "all", first, None, now).ticks == [first + n * 10 * MINUTE for n in range(7)]
    assert due(rule, "none", first, None, now) == Firing([], first + HOUR + 10 * MINUTE)


def test_a_year_without_anybody_fires_no_more_than_the_newest_thousand_and_takes_no_time():
    rule, first = Rule.of(cron="* * * * *", tz=BERLIN), us("2026-01-01")
    firing = due(rule, "all", first, None, first + 365 * DAY)
    assert len(firing.ticks) == MOST_MISSED
    assert firing.ticks[-1] == first + 365 * DAY


def test_a_tick_that_was_fired_under_another_rule_is_not_fired_again():
    rule, tick = Rule.of(every="1m"), us("2026-11-13T09:00")
    assert due(rule, "all", tick, tick, tick + 5).ticks == []


def test_a_tick_that_was_promised_is_fired_where_the_rules_of_its_zone_have_changed_since():
    rule, promised = Rule.of(cron="0 9 * * *"), us("2026-11-13T08:00")
    assert due(rule, "latest", promised, None, promised + 5) == Firing([promised], us("2026-11-13T09:00"))
    assert due(rule, "all", promised, None, promised + DAY).ticks == [promised, us("2026-11-13T09:00")]


# --- what is refused


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({}, "give one of cron and every"),
        ({"cron": "* * * * *", "every": "1m"}, "give one of cron and every"),
        ({"cron": "61 * * * *"}, "bad minute '61'"),
        ({"cron": "* 25 * * *"}, "bad hour '25'"),
        ({"cron": "* * * * moon"}, "bad day-of-week 'moon'"),
        ({"cron": "* * *"}, "it has 3 fields, not 5"),
        ({"cron": ""}, "it has 0 fields, not 5"),
        ({"cron": "0 0 31 2 *"}, "bad day-of-month '31'"),
        ({"cron": "0 0 */15 * mon#2"}, "never comes"),
        ({"cron": "*/0 * * * *"}, "bad minute '*/0'"),
        ({"cron": "1," * 500 + "1 * * * *"}, "over the limit of 200"),
        ({"cron": "* * * * *", "tz": "Europe/Atlantis"}, "'Europe/Atlantis' is no time zone"),
        ({"cron": "* * * * *", "tz": "../../etc/passwd"}, "is no time zone"),
        ({"cron": "* * * * *", "tz": ""}, "is no time zone"),
        ({"cron": "* * * * *", "tz": "Europe"}, "is no time zone"),
        ({"every": "500ms"}, "too short"),
        ({"every": "often"}, "is no duration"),
    ],
)
def test_what_is_wrong_with_a_rule_is_named(how, says):
    with pytest.raises(BadInput) as refused:
        Rule.of(**how)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_tick_is_found_in_what_its_job_belongs_to():
    assert tick_of(correlation("a@b", us("2026-11-13T09:00"))) == datetime(2026, 11, 13, 9, tzinfo=UTC)
    assert [tick_of(text) for text in (None, "order-17", "schedule:x", "schedule:x@soon")] == [None] * 4
    assert timedelta(microseconds=next_tick(Rule.of(every="1w"), 0)) == timedelta(weeks=1)
