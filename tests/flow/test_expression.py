"""References and conditions: typed values, and nothing in them that runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.flows.expression import Wrong, condition, filled, met, reference, references, unclosed
from keptwork.flows.plan import looking

VALUES: dict[str, Any] = {"a": {"n": 3, "text": "x; rm -rf /", "list": [1, {"k": None}], "ok": True}}


def look(wanted):
    value = VALUES[wanted.root]
    for part in wanted.path:
        value = value[part]
    return value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${a.n}", 3),
        ("${a.ok}", True),
        ("${a.list[1].k}", None),
        ("${a.list}", [1, {"k": None}]),
        ("n = ${a.n}, ok = ${a.ok}", "n = 3, ok = true"),
        ("${a.text}", "x; rm -rf /"),
        ("say ${a.text}", "say x; rm -rf /"),
        ("$${a.n} costs $5", "${a.n} costs $5"),
        ("plain", "plain"),
    ],
)
def test_references_are_replaced_by_values_of_their_own_type(text, value):
    assert filled(text, look) == value


def test_a_value_is_not_looked_into_for_further_references():
    assert filled("${a.text}", lambda _: "${a.n}") == "${a.n}"


def test_what_has_no_value_is_named():
    with pytest.raises(Wrong, match=r"no value for \$\{a\.nothing\}"):
        filled("${a.nothing}", look)


def test_of_a_step_that_was_skipped_it_is_said_that_it_did_not_run():
    with pytest.raises(Wrong, match=r"^there is no value for \$\{b\.n\}: b did not run$"):
        filled("${b.n}", looking(VALUES))
    with pytest.raises(Wrong, match=r"^there is no value for \$\{a\.nothing\}$"):
        filled("${a.nothing}", looking(VALUES))


def test_references_that_are_begun_and_not_closed_are_found_however_deep():
    assert list(unclosed({"x": ["${a.n", "${a.n} and $${a", {"y": "} ${a ${b"}]})) == ["${a.n", "${a ", "${b"]
    assert list(unclosed(["$5 {x} ${a.n} $", 3, None])) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${a.n} == 3", True),
        ("${a.n} > 3 or ${a.ok}", True),
        ("not ${a.ok}", False),
        ("1 < ${a.n} < 5", True),
        ('${a.text} in ["y", "x; rm -rf /"]', True),
        ('"rm" in ${a.text}', True),
        ("${a.list[1].k} == null", True),
        ("${a.ok} == true and -1 < 0", True),
        ("${a.n} not in (1, 2)", True),
    ],
)
def test_conditions(text, value):
    assert met(condition(text), look) is value


def test_values_that_cannot_be_compared_are_said_to_be():
    with pytest.raises(Wrong, match="cannot be decided"):
        met(condition("${a.n} < ${a.text}"), look)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "a.b",
        "(lambda: 1)()",
        "[x for x in (1,)]",
        "1 + 1",
        "f'{1}'",
        "a := 1",
        "b'x' == 1",
        "...",
        "1 if 1 else 2",
    ],
)
def test_nothing_else_is_a_condition(text):
    with pytest.raises(Wrong):
        condition(text)


@given(st.text(max_size=50))
def test_any_text_is_a_condition_or_wrong(text):
    try:
        condition(text)
    except Wrong:
        return


@given(
    st.recursive(st.text(max_size=8) | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=3), x))
)
def test_a_value_without_references_stays_as_it_is(value):
    if "${" not in repr(value):
        assert filled(value, look) == value
        assert list(references(value)) == []


def test_a_reference_is_shown_as_it_is_written():
    assert str(reference("test.json.items[0]")) == "${test.json.items[0]}"
