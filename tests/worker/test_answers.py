"""What a handler's process says is data, and whatever it says the worker makes something of it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keptwork import Cancel, PermanentError, Snooze, ValidationError
from keptwork.jobs.outcome import Raised
from keptwork.workers.isolation.rpc import decoded, encoded

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_a_result_arrives_as_it_was_returned(value: Any) -> None:
    assert decoded(encoded(value)) == value


@pytest.mark.parametrize("said", [Snooze("5m"), Snooze(1.5), Cancel("why\0"), Cancel()])
def test_an_outcome_arrives_as_it_was_said(said: Any) -> None:
    assert decoded(encoded(said)) == said


def test_a_snooze_may_be_a_timedelta() -> None:
    assert decoded(encoded(Snooze(timedelta(minutes=5)))) == Snooze(300.0)


@pytest.mark.parametrize("error", [ValidationError("a"), PermanentError("b"), TimeoutError("c"), KeyError("d")])
def test_an_error_arrives_as_its_text_under_its_kind(error: Exception) -> None:
    read = decoded(encoded(Raised(error)))
    assert read.described == Raised(error).described
    assert isinstance(read.error, type(error)) is not isinstance(error, KeyError)


@settings(max_examples=40, deadline=None)
@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_an_answer_that_makes_no_sense_is_an_error(answer: bytes) -> None:
    assert isinstance(decoded(answer), Raised)


@pytest.mark.parametrize("word", ["raised", "snooze", "cancel", "returned", "__class__"])
@settings(max_examples=40, deadline=None)
@given(VALUES)
def test_a_known_word_with_a_strange_value_is_read_or_refused(word: str, value: Any) -> None:
    read = decoded(json.dumps({word: value}).encode())
    assert word in ("returned", "snooze", "cancel") or isinstance(read, Raised)
