"""JSON Schema: what fits and what does not, keyword by keyword, and which schemas are refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.agents.json_schema import KEYWORDS, Schema
from keptwork.errors import BadInput

TREE = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}}

# schema, what fits, what does not
CASES: list[tuple[Any, list[Any], list[Any]]] = [
    (True, [1, None, {}], []),
    ({}, [1, None, {}], []),
    (False, [], [1, None]),
    ({"type": "integer"}, [1, 0, -3, 1.0], [1.5, True, "1", None]),
    ({"type": "number"}, [1, 1.5], [True, "1", None, []]),
    ({"type": "string"}, ["", "x"], [1, None, ["x"]]),
    ({"type": "boolean"}, [True, False], [0, 1, "true", None]),
    ({"type": "null"}, [None], [0, False, "", {}]),
    ({"type": "array"}, [[], [1]], [{}, "[]"]),
    ({"type": "object"}, [{}, {"a": 1}], [[], "{}"]),
    ({"type": ["string", "null"]}, ["x", None], [1, False]),
    ({"enum": [1, "a", None, [1]]}, [1, 1.0, "a", None, [1.0]], [True, "b", 0, [2], []]),
    ({"const": {"a": [0]}}, [{"a": [0]}, {"a": [0.0]}], [{"a": [False]}, {"a": [0], "b": 1}, {}]),
    ({"const": False}, [False], [0, None, ""]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "äöü", 5, None], ["a", "abcd", ""]),
    ({"pattern": "^a+$"}, ["a", "aaa", 7], ["", "b", "ab"]),
    ({"pattern": "b"}, ["abc"], ["ac"]),
    ({"format": "date"}, ["2026-02-28", 1], ["2026-02-30", "today"]),
    ({"format": "date-time"}, ["2026-02-28T10:00:00Z"], ["10 o'clock"]),
    ({"format": "uuid"}, ["12345678-1234-5678-1234-567812345678"], ["1234"]),
    ({"format": "email"}, ["a@b.example"], ["a.b", "@b", "a@", "a@b@c"]),
    ({"format": "uri"}, ["https://a.example/"], ["a"]),
    ({"minimum": 1, "maximum": 2}, [1, 1.5, 2, "0", None, True], [0.99, 3]),
    ({"exclusiveMinimum": 1, "exclusiveMaximum": 2}, [1.5], [1, 2]),
    ({"multipleOf": 0.1}, [0.3, 1, 1e20], [0.35]),
    ({"multipleOf": 3}, [0, 9, -3, "x"], [1, 10.5]),
    ({"items": {"type": "integer"}}, [[], [1, 2], "x", {"a": "b"}], [[1, "x"], [None]]),
    ({"prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}}, [[], [1], [1, 2, 3, 3]], [[2], [1, 2, 2]]),
    ({"prefixItems": [True], "items": False}, [[], [1]], [[1, 2]]),
    ({"minItems": 1, "maxItems": 2}, [[1], [1, 2], "abc"], [[], [1, 2, 3]]),
    ({"uniqueItems": True}, [[1, 2, True, "1"], [], [[1], [2]]], [[1, 1.0], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
    ({"uniqueItems": False}, [[1, 1]], []),
    ({"required": ["a"]}, [{"a": None}, [], "x"], [{}, {"b": 1}]),
    ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1}, {"b": "x"}], [{"a": "x"}]),
    ({"properties": {"a": True}, "additionalProperties": False}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    ({"additionalProperties": {"type": "string"}}, [{}, {"a": "x"}], [{"a": 1}]),
    (
        {"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x1": 1}],
        [{"x1": "a"}, {"y": 1}],
    ),
    (
        {"properties": {"x": {"minimum": 5}}, "patternProperties": {"x": {"maximum": 6}}},
        [{"x": 5}],
        [{"x": 4}, {"x": 7}],
    ),
    ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}, {}], [{"abc": 1}]),
    ({"minProperties": 1, "maxProperties": 1}, [{"a": 1}, []], [{}, {"a": 1, "b": 2}]),
    ({"anyOf": [{"type": "string"}, {"minimum": 3}]}, ["x", 3, None], [2]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, [1, 3.5], [3, 2.5]),
    ({"allOf": [{"minimum": 1}, {"maximum": 2}]}, [1, 2], [0, 3]),
    ({"not": {"type": "string"}}, [1, None], ["x"]),
    (TREE, [{}, {"next": {"next": {}}}], [1, {"next": 1}, {"next": {"next": []}}]),
    ({"title": "t", "description": "d", "default": 1, "$schema": "s", "type": "string"}, ["x"], [1]),
]


def misfit(schema: Any, value: Any) -> str | None:
    return Schema(schema).misfit(value, re.search)


@pytest.mark.parametrize(("schema", "fits", "wrong"), CASES, ids=[json.dumps(schema)[:40] for schema, _, _ in CASES])
def test_what_a_schema_says_is_checked(schema: Any, fits: list[Any], wrong: list[Any]) -> None:
    assert [(value, found) for value in fits if (found := misfit(schema, value)) is not None] == []
    assert [value for value in wrong if misfit(schema, value) is None] == []


def test_the_table_above_has_every_keyword_that_says_something() -> None:
    """One that nobody checks here could be understood by nobody."""
    written = json.dumps([schema for schema, _, _ in CASES])
    silent = {"examples", "deprecated", "readOnly", "writeOnly", "$id", "$comment", "definitions"}
    assert [keyword for keyword in KEYWORDS - silent if f'"{keyword}"' not in written] == []


@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "object", "required": ["n"]}, {}, "the value: 'n' is missing"),
        (
            {"items": {"properties": {"a": {"type": "integer"}}}},
            [{}, {"a": "x"}],
            '[1].a: it must be an integer, not "x"',
        ),
        (
            {"properties": {"a": True}, "additionalProperties": False},
            {"b": 1},
            "the value: 'b' is not known there; it may have 'a'",
        ),
        ({"enum": ["low", "high"]}, "mid", 'the value: it must be one of "low", "high", not "mid"'),
        ({"maxLength": 3}, "x" * 9, "the value: it must have at most 3 characters, not 9"),
    ],
)
def test_what_does_not_fit_is_told_where_it_is_and_what_it_should_be(schema: Any, value: Any, said: str) -> None:
    assert misfit(schema, value) == said


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"typ": "object"}, "the keyword 'typ' is not understood; there are"),
        ({"properties": {"a": {"if": True}}}, "the schema/properties/a: the keyword 'if' is not understood"),
        ({"type": "text"}, 'type cannot be "text"'),
        ({"minLength": -1}, "minLength cannot be -1"),
        ({"multipleOf": 0}, "multipleOf cannot be 0"),
        ({"required": "a"}, 'required cannot be "a"'),
        ({"anyOf": []}, "anyOf cannot be []"),
        ({"pattern": "("}, "'(' is no regular expression"),
        ({"patternProperties": {"(": True}}, "'(' is no regular expression"),
        ({"format": "colour"}, 'format cannot be "colour"'),
        ({"$ref": "https://example.com/x"}, "leads nowhere"),
        ({"$ref": "#/$defs/x"}, "leads nowhere"),
        ({"items": 3}, "a schema is an object, or true or false; this is 3"),
        ([], "a schema is an object"),
        ({"description": "x" * 300_000}, "larger than 256 KiB"),
    ],
)
def test_a_schema_that_could_not_be_checked_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        Schema(schema)


def test_a_schema_that_leads_back_to_itself_comes_to_an_end() -> None:
    assert misfit({"$ref": "#"}, 1) == "the value: it is nested too deeply"
    deep: Any = {}
    for _ in range(500):
        deep = {"next": deep}
    assert "nested too deeply" in str(misfit(TREE, deep))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)


@given(VALUES, VALUES)
def test_a_value_fits_its_own_and_no_other(one: Any, other: Any) -> None:
    """Two values are the same for JSON where their texts are, once every number is written the same way."""
    assert misfit({"const": one}, json.loads(json.dumps(one))) is None
    same = _normal(one) == _normal(other)
    assert (misfit({"const": one}, other) is None) == (misfit({"enum": [other]}, one) is None) == same
    assert (misfit({"uniqueItems": True}, [one, other]) is None) == (not same)


def _normal(value: Any) -> str:
    def number(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return (
                {k: number(v) for k, v in value.items()}
                if isinstance(value, dict)
                else ([number(v) for v in value] if isinstance(value, list) else value)
            )
        return f"#{int(value)}" if value == int(value) else f"#{value!r}"

    return json.dumps(number(value), sort_keys=True)
