"""What a model gives a tool: where it goes, and what is refused."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keptwork.agents.validation import MOST_BYTES, Takes, Unfit
from keptwork.errors import BadInput

TEXT = {"type": "string"}
ALL = {
    "properties": {"path": TEXT, "to": TEXT, "files": {"type": "array", "items": TEXT}, "n": {"type": "integer"}},
    "required": ["path"],
}


def passed(args: Any, given: dict[str, Any], schema: Any = ALL) -> list[str]:
    argv, stdin = Takes(schema, args).passed(given)
    assert stdin == b""
    return list(argv)


def refused(given: Any, schema: Any = ALL) -> str | None:
    return Takes(schema).refusal(given, re.search)


def test_values_go_where_the_template_says() -> None:
    args = ["put", "--path={path}", ["--to", "{to}"], ["-n", "{n}"], "--", "{files}", "{{literal}}"]
    assert passed(args, {"path": "a b", "to": "c", "files": ["-x", "y"]}) == [
        *("put", "--path=a b", "--to", "c", "--", "-x", "y", "{literal}")
    ]
    assert passed(args, {"path": "", "files": []}) == ["put", "--path=", "--", "{literal}"]
    assert passed(args, {"path": "p", "to": None}) == ["put", "--path=p", "--", "{literal}"]


def test_without_a_template_all_goes_to_stdin_as_json() -> None:
    argv, stdin = Takes(ALL).passed({"path": "-x; $(rm)\n", "n": 1})
    assert (argv, json.loads(stdin)) == ((), {"path": "-x; $(rm)\n", "n": 1})
    assert Takes().passed({}) == ((), b"")


@pytest.mark.parametrize(
    ("args", "given"),
    [
        (["{path}"], {"path": "-rf"}),
        (["{path}"], {"path": "--help"}),
        (["{path}"], {"path": "-"}),
        (["{path}", "--", "x"], {"path": "-rf"}),
        ([["--to", "{to}"]], {"to": "-rf"}),
        (["{files}"], {"files": ["a", "-b"]}),
        (["{n}"], {"n": -5}),
        (["{to}{path}"], {"to": "", "path": "-x"}),
    ],
)
def test_no_value_becomes_an_option(args: Any, given: dict[str, Any]) -> None:
    properties = {name: one for name, one in ALL["properties"].items() if f"{{{name}}}" in json.dumps(args)}  # type: ignore[attr-defined]
    with pytest.raises(Unfit, match="may not begin with '-'"):
        Takes({"properties": properties, "required": list(properties)}, args).passed(given)


def test_a_template_may_say_that_a_dash_is_meant() -> None:
    only = {"properties": {"path": TEXT}}
    assert passed(["--", "{path}"], {"path": "-x"}, only) == ["--", "-x"]
    assert passed(["-{path}"], {"path": "-x"}, only) == ["--x"]
    assert Takes(only, ["{path}"]).passed({"path": "-x"}, after=("grep", "--"))[0] == ("-x",)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50))
def test_a_value_arrives_as_it_is_or_is_refused(value: str) -> None:
    only = {"properties": {"path": TEXT}}
    takes = Takes(only, ["{path}", "--path={path}"])
    assert takes.refusal({"path": value}, re.search) is None
    if value.startswith("-"):
        with pytest.raises(Unfit):
            takes.passed({"path": value})
    else:
        assert takes.passed({"path": value}) == ((value, f"--path={value}"), b"")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"path": "a\0b"}, "hold a NUL"),
        ({"path": "x", "files": ["a", "\0"]}, "hold a NUL"),
        ({"path": "\ud800"}, "half of a character"),
        ({"path": "x" * MOST_BYTES}, "bytes; 262,144 at most"),
        ({}, "'path' is missing"),
        ({"path": 5}, "path: it must be a string"),
        ({"path": "x", "more": 1}, "'more' is not known there"),
        ({"path": float("nan")}, "no JSON"),
        ({"path": "x", "n": "1"}, "n: it must be an integer"),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, said: str) -> None:
    assert said in str(refused(given))


def test_what_is_nested_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert refused({"path": deep}) is not None


def test_text_that_only_looks_like_an_escape_is_no_nul() -> None:
    assert refused({"path": "\\u0000 and \\ud800"}) is None


@pytest.mark.parametrize(
    ("schema", "args", "said"),
    [
        (ALL, ["{nosuch}"], "{nosuch} is not among the properties"),
        ({"properties": {"a": TEXT, "b": TEXT}}, ["{a}"], "nothing takes {b}"),
        ({"properties": {"a": TEXT}}, ["--a", "{a}"], 'write [["--a", "{a}"]]'),
        ({"properties": {"a": TEXT}}, ["{a:>10}"], "the name of a property, and nothing else"),
        ({"properties": {"a": TEXT}}, ["{a!r}"], "the name of a property, and nothing else"),
        ({"properties": {"a": TEXT}}, ["{}"], "the name of a property, and nothing else"),
        ({"properties": {"a": TEXT}}, ["{a.__class__}"], "is not among the properties"),
        ({"properties": {"a": TEXT}}, ["{a"], "a brace itself is written"),
        ({"type": "array"}, None, "its type is object"),
        ({"properties": {"a": {"typ": 1}}}, None, "'typ' is not understood"),
    ],
)
def test_a_profile_that_could_not_work_is_refused(schema: Any, args: Any, said: str) -> None:
    with pytest.raises(BadInput) as refusal:
        Takes(schema, args)
    assert said in str(refusal.value)
