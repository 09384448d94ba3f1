"""Checks whether an answer meets its requirements: a JSON schema, patterns that must or must not match, or a Python
function. The message about a problem helps the model to correct its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from keptwork.agents import json_schema_patterns
from keptwork.agents.json_schema import Schema
from keptwork.agents.json_schema_patterns import Patterns, TooSlow
from keptwork.agents.skills import Skill
from keptwork.core.function_ref import Target, load, unwrapped
from keptwork.errors import BadInput

LONGEST_ANSWER = 1 << 20
LONGEST_PROBLEM = 1_000
MOST_PROBLEMS = 5

_FENCED = re.compile(r"^[ \t]*```[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*```[ \t]*$", re.DOTALL | re.MULTILINE)
_HOW = "Answer with JSON alone, or with one block of it fenced by ```json and ```."

Check = Callable[[str], object]
Find = Callable[[str, str], tuple[int, int] | None]


class Verdict(NamedTuple):
    """The problem of an answer, or None, and the value in the answer if JSON was required."""

    problem: str | None
    json: Any = None


@dataclass(frozen=True, slots=True)
class Rules:
    """The requirements for an answer. `check` is a pydantic model, or a function that takes the text. The function
    returns None or True if the answer is valid, and a message otherwise. It can also raise a ValueError."""

    schema: Schema | None = None
    must_match: tuple[str, ...] = ()
    must_not_match: tuple[str, ...] = ()
    check: type[BaseModel] | Check | None = None

    @property
    def wants_json(self) -> bool:
        """Whether the answer must contain JSON."""
        return self.schema is not None or _is_model(self.check)


def rules(
    schema: Mapping[str, Any] | None = None,
    must_match: tuple[str, ...] = (),
    must_not_match: tuple[str, ...] = (),
    check: str | type[BaseModel] | Check | None = None,
) -> Rules:
    """Return validated rules, or raise `BadInput`. `check` can be a name, as module:function."""
    for pattern in (*must_match, *must_not_match):
        json_schema_patterns.check(pattern)
    found = _named(check) if isinstance(check, str) else check
    return Rules(None if schema is None else Schema(schema), must_match, must_not_match, found)


def rules_of(skill: Skill) -> Rules:
    """Return the requirements of a skill for its answers."""
    return rules(skill.output_schema, skill.must_match, skill.must_not_match, skill.check)


def _named(name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        found = load(Target(module, function)) if function else None
    except (ImportError, AttributeError) as error:
        raise BadInput(what=f"the check {name} cannot be found: {error}; is its folder on PYTHONPATH?") from None
    if not callable(found):
        raise BadInput(what=f"the check {name!r} names no function; it is written module:function")
    return found if _is_model(found) else unwrapped(found)


def check(text: str, wanted: Rules) -> Verdict:
    """Return what is wrong with an answer. This can take seconds, because patterns have a time limit and a function is
    the user's."""
    if len(text) > LONGEST_ANSWER:
        return Verdict(f"The answer is longer than {LONGEST_ANSWER:,} characters. Make it shorter.")
    value, problem = found_json(text) if wanted.wants_json else (None, None)
    if problem is not None:
        return Verdict(problem)
    with Patterns() as search:
        try:
            problem = next(_problems(text, value, wanted, search.find), None)
        except TooSlow as error:
            problem = f"The answer could not be checked: {error}."
        except RecursionError:
            problem = "The JSON in the answer is nested too deeply."
    return Verdict(problem and problem[:LONGEST_PROBLEM], value)


def _problems(text: str, value: Any, wanted: Rules, find: Find) -> Iterator[str]:
    if wanted.schema is not None and (misfit := wanted.schema.misfit(value, find)) is not None:
        yield f"The JSON does not fit its schema: {misfit}."
    for pattern in wanted.must_match:
        if find(pattern, text) is None:
            yield f"The answer must have something that matches the pattern {pattern!r}, and has nothing."
    for pattern in wanted.must_not_match:
        if (span := find(pattern, text)) is not None:
            there = text[slice(*span)][:80]
            yield f"The answer must have nothing that matches the pattern {pattern!r}; it has {there!r}."
    if wanted.check is not None:
        problem = _of_model(wanted.check, value) if _is_model(wanted.check) else _of_function(wanted.check, text)
        if problem is not None:
            yield problem


def found_json(text: str) -> tuple[Any, str | None]:
    """Return the JSON value of an answer, or of a fenced block in it, and what is wrong with it.

    >>> found_json('Here you are:\\n```json\\n{"n": 1}\\n```\\n')
    ({'n': 1}, None)
    """
    blocks = [(language, block) for language, block in _FENCED.findall(text)]
    marked = [block for language, block in blocks if language.lower() == "json"]
    first = None
    for candidate in [text, *marked, *(block for _, block in blocks)]:
        try:
            return json.loads(candidate, parse_constant=_refuse), None
        except RecursionError:
            return None, "The JSON in the answer is nested too deeply."
        except ValueError as error:
            first = error if first is None or candidate in marked[:1] else first
    return None, f"There is no JSON in the answer ({first}). {_HOW}"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_model(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, BaseModel)


def _of_model(model: Any, value: Any) -> str | None:
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False, include_context=False)[:MOST_PROBLEMS]
        told = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the value'}: {one['msg']}" for one in wrong)
        return f"The JSON does not fit: {told}."
    return None


def _of_function(function: Any, text: str) -> str | None:
    """Return the problem that a check function reports. Its other exceptions are its own faults, which no model can
    fix, so they are raised."""
    try:
        said = function(text)
    except (ValueError, AssertionError) as error:
        return str(error) or f"The answer does not pass the check {_name(function)}."
    if said is None or said is True:
        return None
    return said if isinstance(said, str) and said else f"The answer does not pass the check {_name(function)}."


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))
