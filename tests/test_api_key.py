"""Keys to the API as texts: made, read back, mistyped, and never shown."""

from __future__ import annotations

import hashlib
import logging
from string import printable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.access import scopes
from keptwork.access.scopes import ALPHABET, LENGTH, PREFIX, ApiKey, Scope
from keptwork.core.secrets import Redactor
from keptwork.errors import BadInput

bits = st.integers(0, (1 << 256) - 1)
keys = bits.map(lambda number: scopes.new(lambda _: number))


@given(bits)
def test_a_key_is_read_back(number: int) -> None:
    key = scopes.new(lambda asked: number if asked == 256 else -1)
    read = scopes.parse(key.value)
    assert read is not None
    assert (read.value, len(key.value), key.value[:3]) == (key.value, LENGTH, "kw_")
    assert read.matches(key.hash)
    assert key.hash == hashlib.sha256(key.value.encode()).hexdigest()


@given(bits, bits)
def test_different_bits_make_different_keys(one: int, other: int) -> None:
    first, second = scopes.new(lambda _: one), scopes.new(lambda _: other)
    assert (first.value == second.value) == (one == other)
    assert first.matches(second.hash) == (one == other)


def test_keys_are_not_made_twice() -> None:
    assert len({scopes.new().value for _ in range(1_000)}) == 1_000


@given(keys, st.integers(0, LENGTH - 1), st.sampled_from(printable))
def test_one_wrong_sign_is_seen(key: ApiKey, place: int, sign: str) -> None:
    text = key.value[:place] + sign + key.value[place + 1 :]
    assert (scopes.parse(text) is None) == (text != key.value)


@given(keys, st.integers(len(PREFIX), LENGTH - 2))
def test_two_signs_in_the_wrong_order_are_seen(key: ApiKey, place: int) -> None:
    text = key.value
    text = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
    assert (scopes.parse(text) is None) == (text != key.value)


@given(keys, st.integers(0, LENGTH - 1), st.sampled_from(ALPHABET))
def test_one_sign_too_few_or_too_many_is_seen(key: ApiKey, place: int, sign: str) -> None:
    assert scopes.parse(key.value[:place] + key.value[place + 1 :]) is None
    assert scopes.parse(key.value[:place] + sign + key.value[place:]) is None


@given(st.text())
def test_anything_else_is_no_key(text: str) -> None:
    assert scopes.parse(text) is None
    assert scopes.parse(f"kw_{text}") is None


@pytest.mark.parametrize("around", ["{}\n", " {}", "{}\x00", "Bearer {}", "{0}{0}", "{}…"])
def test_what_stands_around_a_key_is_not_overlooked(around: str) -> None:
    assert scopes.parse(around.format(scopes.new().value)) is None


def test_digits_of_other_scripts_are_no_digits() -> None:
    key = scopes.new(lambda _: 0).value
    assert scopes.parse(key.replace("0", "\u0660")) is None
    assert scopes.parse(key) is not None


@given(keys, st.integers(0, 63))
def test_a_part_of_a_hash_does_not_match(key: ApiKey, length: int) -> None:
    assert not key.matches(key.hash[:length])
    assert not key.matches(key.hash + key.hash)
    assert not key.matches(key.hash[:length] + "é" * (64 - length))


def test_a_key_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    key = scopes.new()
    logging.getLogger("keptwork").warning("%s %r %s", key, key, [key])
    shown = f"{key} {key!r} {[key]} {caplog.text}"
    assert "ApiKey(hidden)" in shown
    assert key.value[3:20] not in shown
    assert not hasattr(key, "__dict__")


def test_a_key_that_got_into_a_text_is_taken_out() -> None:
    key = scopes.new().value
    assert Redactor({}).text(f"with {key}, please") == "with [redacted: Keptwork key], please"


def test_scopes_are_the_declared_ones_in_their_order() -> None:
    assert scopes.scopes_of(["admin", "read", "read"]) == (Scope.READ, Scope.ADMIN)
    assert scopes.scopes_of(Scope) == tuple(Scope) == ("read", "write", "approve", "supervise", "admin")
    assert scopes.scopes_of(["approve:ops", "approve:legal", "read"]) == ("read", "approve:legal", "approve:ops")


def test_a_key_has_only_so_many_scopes() -> None:
    with pytest.raises(BadInput, match="at most 50 scopes, not 51"):
        scopes.scopes_of(f"approve:team-{number}" for number in range(51))


WRONG = [
    [],
    ["root"],
    ["read", "READ"],
    ["read,write"],
    [""],
    ["approve:"],
    ["approve:a,b"],
    ["approve:a b"],
    ["write:a"],
]


@pytest.mark.parametrize("names", WRONG)
def test_other_scopes_are_refused(names: list[str]) -> None:
    with pytest.raises(BadInput, match="read, write, approve, supervise, admin"):
        scopes.scopes_of(names)
