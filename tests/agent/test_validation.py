"""Whether an answer is what was asked for, and what the model is told if it is not."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pydantic import BaseModel

from keptwork.agents import skills
from keptwork.agents.json_schema import Patterns, TooSlow
from keptwork.agents.validation import LONGEST_ANSWER, check, found_json, rules, rules_of
from keptwork.errors import BadInput

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Sum(BaseModel):
    """A form for answers."""

    n: int
    note: str = ""


def polite(text: str) -> str | None:
    """A check as users write them."""
    return None if "please" in text else "Say please."


def strict(text: str) -> bool:
    if not text:
        raise ValueError("It is empty.")
    return text == "yes"


def test_json_may_stand_alone_or_in_a_fenced_block() -> None:
    wanted = rules(SCHEMA)
    fenced = 'Here it is:\n\n```json\n{"n": 2}\n```\nDone.'
    for text in ('{"n": 2}', '  {"n": 2}\n', fenced, '```\n{"n": 2}\n```', '```sh\nls\n```\n```\n{"n": 2}\n```'):
        assert check(text, wanted) == (None, {"n": 2}), text


@pytest.mark.parametrize(
    "text", ["", "n is 2", '{"n": 2', '{"n": NaN}', "```json\n{n: 2}\n```", "{'n': 2}", "[" * 5_000]
)
def test_what_is_no_json_is_told_how_to_be(text: str) -> None:
    problem = check(text, rules(SCHEMA)).problem
    assert problem is not None
    assert "```json" in problem or "nested too deeply" in problem


def test_json_of_another_form_is_told_what_is_wrong_and_where() -> None:
    verdict = check('{"n": "two"}', rules(SCHEMA))
    assert verdict == ('The JSON does not fit its schema: n: it must be an integer, not "two".', {"n": "two"})


def test_a_model_of_pydantic_says_what_is_wrong() -> None:
    assert check('{"n": 3}', rules(check=Sum)) == (None, {"n": 3})
    assert check('{"n": "x"}', rules(check=f"{__name__}:Sum")).problem == (
        "The JSON does not fit: n: Input should be a valid integer, unable to parse string as an integer."
    )
    assert "```json" in str(check("three", rules(check=Sum)).problem)


@pytest.mark.acceptance
def test_patterns_must_or_must_not_be_there() -> None:
    wanted = rules(must_match=(r"(?m)^Summary: \w+",), must_not_match=(r"(?i)as an ai",))
    assert check("Well.\nSummary: fine", wanted).problem is None
    assert "'(?m)^Summary: \\\\w+'" in str(check("fine", wanted).problem)
    assert "it has 'As an AI'" in str(check("Summary: As an AI, no", wanted).problem)


def test_a_function_says_what_is_wrong() -> None:
    named = rules(check=f"{__name__}:polite")
    assert [check(text, named).problem for text in ("please", "now")] == [None, "Say please."]
    wanted = rules(check=strict)
    said = "The answer does not pass the check strict."
    assert [check(text, wanted).problem for text in ("yes", "no", "")] == [None, said, "It is empty."]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"check": "nosuchmodule:f"}, "cannot be found"),
        ({"check": f"{__name__}:nosuch"}, "cannot be found"),
        ({"check": "polite"}, "names no function"),
        ({"check": f"{__name__}:SCHEMA"}, "names no function"),
        ({"must_match": ("(",)}, "is no regular expression"),
        ({"must_not_match": ("x" * 2_000,)}, "over the limit"),
        ({"schema": {"typ": 1}}, "'typ' is not understood"),
    ],
)
def test_rules_that_cannot_be_followed_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        rules(**wrong)


@pytest.mark.acceptance
def test_a_catastrophic_pattern_is_stopped_and_the_next_one_works() -> None:
    """As it stands it would run for longer than the universe has."""
    with Patterns(0.3) as patterns:
        began = time.monotonic()
        with pytest.raises(TooSlow, match="takes too long"):
            patterns.find(r"^(a+)+$", "a" * 60 + "b")
        assert time.monotonic() - began < 30
        assert patterns.find("b", "a" * 60 + "b") == (60, 61)


@pytest.mark.acceptance
def test_an_answer_that_cannot_be_checked_in_time_does_not_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keptwork.agents.validation.Patterns", lambda: Patterns(0.2))
    evil = {"properties": {"n": {"pattern": r"^(\w+\s?)*$"}}}
    assert "takes too long" in str(check('{"n": "' + "x" * 60 + '!"}', rules(evil)).problem)


def test_an_endless_answer_is_refused_before_it_is_read() -> None:
    assert "Make it shorter" in str(check("x" * (LONGEST_ANSWER + 1), rules(must_match=("x",))).problem)


def test_a_value_is_found_where_people_put_it() -> None:
    assert found_json("```json\n[1]\n```\n```json\n[2]\n```") == ([1], None)
    assert found_json("```python\nx\n```")[0] is None


@pytest.mark.acceptance
def test_a_skill_says_what_its_answers_are(tmp_path: Any) -> None:
    file = tmp_path / "sum" / "SKILL.md"
    file.parent.mkdir()
    front = "name: sum\ndescription: Adds up\noutput-schema: {type: object, required: [n]}\n"
    file.write_text(f"---\n{front}must-match: ['n']\nmust-not-match: [sorry]\ncheck: {__name__}:polite\n---\nAdd.\n")
    wanted = rules_of(skills.read(file))
    assert check('{"n": 1}', wanted).problem == "Say please."
    assert check('{"n": 1, "please": 1}', wanted) == (None, {"n": 1, "please": 1})
    file.write_text(f"---\n{front}must-match: ['(']\n---\nAdd.\n")
    with pytest.raises(BadInput, match=r"SKILL.md: '\(' is no regular expression"):
        skills.read(file)
    file.write_text("---\nname: sum\ndescription: Adds up\noutput-schema: {tipe: object}\n---\nAdd.\n")
    with pytest.raises(BadInput, match=r"SKILL.md: the schema: the keyword 'tipe' is not understood"):
        skills.read(file)
