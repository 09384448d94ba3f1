"""Checks whether an answer meets its requirements: a JSON schema, patterns that must or must not match, or a Python
function. The message about a problem helps the model to correct its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from string import Formatter
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from keptwork.agents import json_schema
from keptwork.agents.json_schema import Find as FindPattern
from keptwork.agents.json_schema import Patterns, Schema, TooSlow
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
        json_schema.check(pattern)
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


# Checks the arguments that a model gives a tool, and turns them into a program's arguments and stdin.
#
# A profile states in JSON Schema what arguments there are, and in a template where each one goes: `["--path={path}",
# "{file}"]`. Without a template, all arguments go to stdin as JSON. An argument is always data. No shell
# reads it, it has no NUL, and it does not start with `-` where a program would take it for an option. A template part
# that is itself a list is omitted if one of its values is not given.


MOST_BYTES = 256 << 10
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}

OPERANDS = "--"
"""No argument after it is an option."""


class Unfit(Exception):
    """A value from a model that cannot be passed to the program."""


class Part(NamedTuple):
    """One argument of the template: pairs of text and the name of the value that follows it."""

    pieces: tuple[tuple[str, str | None], ...]

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.pieces if name is not None]

    @property
    def lone(self) -> str | None:
        """The name of the value if it is the whole argument, or None."""
        return self.pieces[0][1] if len(self.pieces) == 1 and not self.pieces[0][0] else None

    @property
    def says_option(self) -> bool:
        """Whether the template itself starts the argument with a dash."""
        return self.pieces[0][0].startswith("-")


class Takes:
    """The arguments that a tool takes. An invalid schema or template raises `BadInput`."""

    def __init__(
        self, schema: Mapping[str, Any] | None = None, args: Sequence[str | Sequence[str]] | None = None
    ) -> None:
        self.schema: dict[str, Any] = {**_NOTHING, **(schema or {})}
        self._checked = Schema(self.schema)
        self._groups = None if args is None else [_group(group) for group in args]
        for problem in self._wrong():
            raise BadInput(what=problem)

    def _wrong(self) -> Iterator[str]:
        if self.schema["type"] != "object":
            yield "arguments: its type is object; what a tool takes has names"
        if self._groups is None:
            return
        known, always = self.schema["properties"], set(self.schema.get("required", ()))
        used = [name for group in self._groups for part in group for name in part.names]
        for name in used:
            if name not in known:
                yield f"args: {{{name}}} is not among the properties of arguments; a brace is written {{{{"
        for name in known:
            if name not in used:
                yield f"args: nothing takes {{{name}}}; add it, or leave args out to pass everything as JSON on stdin"
        for (one,), (two,) in _lone_neighbours(self._groups):
            if (
                two.names
                and two.names[0] not in always
                and one.says_option
                and not one.names
                and one.pieces[0][0] != OPERANDS
            ):
                option, name = one.pieces[0][0], two.names[0]
                instead = f'[["{option}", "{{{name}}}"]]'
                yield f"args: {option} would stand alone where {{{name}}} is not given; write {instead}"

    def refusal(self, given: Mapping[str, Any], find: FindPattern) -> str | None:
        """Return what is wrong with the arguments from a model, or None if they can be passed on."""
        try:
            text = json.dumps(given, allow_nan=False)
            if len(text) > MOST_BYTES:
                return f"the arguments are {len(text):,} bytes; {MOST_BYTES:,} at most are taken"
            if "\\u0000" in text and _any_text(given, lambda one: "\0" in one):
                return "the arguments hold a NUL, which no program can be given"
            if "\\ud" in text and _any_text(given, _is_no_text):
                return "the arguments hold half of a character: that is no text"
            return self._checked.misfit(given, find)
        except (ValueError, TypeError, RecursionError) as error:
            return f"the arguments are no JSON that could be passed on: {error}"

    def passed(self, given: Mapping[str, Any], after: Sequence[str] = ()) -> tuple[tuple[str, ...], bytes]:
        """Return the program's arguments after those of its command, and its stdin. Raise `Unfit` for a value that
        cannot be passed."""
        if self._groups is None:
            takes_some = self.schema != _NOTHING
            return (), json.dumps(given, separators=(",", ":"), sort_keys=True).encode() if takes_some else b""
        argv: list[str] = []
        for group in self._groups:
            if all(given.get(name) is not None for part in group for name in part.names):
                for part in group:
                    argv += self._filled(part, given, OPERANDS in after or OPERANDS in argv)
        return tuple(argv), b""

    def _filled(self, part: Part, given: Mapping[str, Any], operands: bool) -> Iterator[str]:
        lone = part.lone
        several = given[lone] if lone is not None and isinstance(given[lone], list) else None
        for text in _texts(part, given) if several is None else map(_text, several):
            if text.startswith("-") and part.names and not part.says_option and not operands:
                name = part.names[0]
                raise Unfit(f"{name}: a value may not begin with '-' here, where it could be taken for an option")
            yield text


def _group(group: str | Sequence[str]) -> list[Part]:
    return [_part(text) for text in ([group] if isinstance(group, str) else group)]


def _part(text: str) -> Part:
    try:
        found = [(literal, name, form, how) for literal, name, form, how in Formatter().parse(text)]
    except ValueError as error:
        raise BadInput(what=f"args: {text!r}: {error}; a brace itself is written {{{{ or }}}}") from None
    if any(form or how or name == "" for _, name, form, how in found):
        raise BadInput(what=f"args: {text!r}: between braces stands the name of a property, and nothing else")
    return Part(tuple((literal, name) for literal, name, _, _ in found) or (("", None),))


def _lone_neighbours(groups: list[list[Part]]) -> Iterator[tuple[list[Part], list[Part]]]:
    return ((one, two) for one, two in pairwise(groups) if len(one) == len(two) == 1)


def _texts(part: Part, given: Mapping[str, Any]) -> Iterator[str]:
    yield "".join(literal + ("" if name is None else _text(given[name])) for literal, name in part.pieces)


def _text(value: Any) -> str:
    """Return a value as a program reads it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _any_text(value: Any, wrong: Any) -> bool:
    if isinstance(value, str):
        return bool(wrong(value))
    if isinstance(value, Mapping):
        return any(_any_text(key, wrong) or _any_text(inner, wrong) for key, inner in value.items())
    return isinstance(value, list | tuple) and any(_any_text(inner, wrong) for inner in value)


def _is_no_text(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)
