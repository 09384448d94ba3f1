"""Points in time and spans of it, as text."""

from __future__ import annotations

import doctest
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.core import durations
from keptwork.core.durations import moment_us, rfc3339, span_us
from keptwork.errors import BadInput

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1ms", 0.001), ("30s", 30), ("10m", 600), ("1h30m", 5400), ("7d", 604_800), ("2w", 1_209_600), ("0s", 0)],
)
def test_how_long_a_duration_is(text, seconds):
    assert span_us(text) == seconds * SECOND


@pytest.mark.parametrize("text", ["", "10", "m", "1.5h", "-5m", "10 m", "10M", "1y", "٣m", "10m ", "1h-3m"])
def test_what_is_no_duration_is_refused_with_an_example(text):
    with pytest.raises(BadInput, match="is no duration; write one like 30s, 10m"):
        span_us(text)


def test_a_duration_beyond_all_reason_is_refused():
    with pytest.raises(BadInput, match="longer than a hundred years"):
        span_us("9" * 30 + "w")


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC)))
def test_a_moment_that_is_written_is_read_back(moment):
    us = int(moment.timestamp()) * SECOND + moment.microsecond
    assert moment_us(rfc3339(us), now_us=0) == us


def test_a_zone_counts_and_a_missing_one_is_utc():
    assert moment_us("1970-01-01T02:00:00+02:00", 5) == 0
    assert moment_us("1970-01-01T00:00:01", 5) == SECOND
    assert moment_us("1970-01-02", 5) == 86_400 * SECOND


def test_a_duration_is_so_long_ago():
    assert moment_us("1m", now_us=100 * SECOND) == 40 * SECOND


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01", "17:10", "2026-11-15T25:00:00Z"])
def test_what_is_neither_is_refused_with_an_example_of_each(text):
    with pytest.raises(BadInput, match="neither a time nor a duration; write 2026-11-15T17:10:20Z, or 10m"):
        moment_us(text, 0)


@pytest.mark.parametrize("us", [1 << 63, -(1 << 63)])
def test_a_number_that_is_no_time_is_still_shown(us):
    assert str(us) in rfc3339(us)


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(durations).failed == 0
