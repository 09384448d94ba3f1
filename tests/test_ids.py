"""Public ids: they read back, sort by time, and give a mistyped one away."""

from __future__ import annotations

import doctest
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.core import ids
from keptwork.core.lifecycles import LIFECYCLES

KEYS = st.integers(1, 2**63 - 1)
PREFIXES = st.sampled_from(sorted({found.prefix for found in LIFECYCLES.values()}))
HEX = "0123456789abcdef"


@given(PREFIXES, KEYS)
def test_an_id_reads_back_as_the_key_it_was_made_of(prefix, key):
    assert ids.key_of(ids.public(prefix, key)) == (prefix, key)


@given(KEYS)
def test_an_id_is_a_uuid_of_version_seven(key):
    uuid = UUID(ids.public("job", key).removeprefix("job_"))
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == (key >> ids.COUNTER_BITS) + ids.EPOCH_MS


@given(KEYS, KEYS)
def test_ids_sort_as_their_keys_do(one, other):
    assert (ids.public("job", one) < ids.public("job", other)) == (one < other)


@given(st.integers(ids.EPOCH_MS, ids.EPOCH_MS + 2**41 - 2))
def test_a_later_millisecond_has_later_keys(ms):
    assert ids.first_key_of(ms) < ids.first_key_of(ms + 1)
    assert ids.first_key_of(ms + 1) - ids.first_key_of(ms) == 1 << ids.COUNTER_BITS


def test_a_time_before_the_first_is_the_first():
    assert ids.first_key_of(0) == ids.first_key_of(ids.EPOCH_MS) == 0


@given(KEYS, st.data())
def test_one_mistyped_digit_is_noticed(key, data):
    text = ids.public("job", key)
    place = data.draw(st.sampled_from([i for i, c in enumerate(text) if i > 3 and c != "-"]))
    typed = data.draw(st.sampled_from([c for c in HEX if c != text[place]]))
    assert ids.key_of(text[:place] + typed + text[place + 1 :]) is None


@given(KEYS, st.data())
def test_two_digits_swapped_are_noticed(key, data):
    text = ids.public("job", key)
    place = data.draw(st.integers(4, len(text) - 2))
    swapped = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert swapped == text or ids.key_of(swapped) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "job",
        "job_",
        "_",
        "job_7",
        "0199c82c-c000-7000-807a-a2a0b8276ff8",
        "_0199c82c-c000-7000-807a-a2a0b8276ff8",
        "job_0199c82cc0007000807aa2a0b8276ff8",
        "job_{0199c82c-c000-7000-807a-a2a0b8276ff8}",
        "job_0199c82c-c000-7000-807a-a2a0b8276ff8 ",
        "job_00000000-0000-0000-0000-000000000000",
        "job_ffffffff-ffff-ffff-ffff-ffffffffffff",
    ],
)
def test_what_is_no_id_is_refused(text):
    assert ids.key_of(text) is None


@given(st.text())
def test_reading_never_fails(text):
    assert ids.key_of(text) is None or ids.public(*(ids.key_of(text) or ("", 0))) == text.lower()


def test_an_id_in_capitals_is_still_the_same():
    assert ids.key_of("job_0199c82c-c000-7000-807a-a2a0b8276ff8")
    assert ids.key_of("job_0199C82C-C000-7000-807A-A2A0B8276FF8") == ids.key_of(
        "job_0199c82c-c000-7000-807a-a2a0b8276ff8"
    )


def test_the_examples_in_the_docstrings():
    result = doctest.testmod(ids)
    assert result.attempted >= 2
    assert result.failed == 0
