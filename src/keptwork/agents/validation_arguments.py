"""Checks the arguments that a model gives a tool, and turns them into a program's arguments and stdin.

A profile states in JSON Schema what arguments there are, and in a template where each one goes: `["--path={path}",
"{file}"]`. Without a template, all arguments go to stdin as JSON. An argument is always data. No shell
reads it, it has no NUL, and it does not start with `-` where a program would take it for an option. A template part
that is itself a list is omitted if one of its values is not given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from string import Formatter
from typing import Any, NamedTuple

from keptwork.agents.json_schema import Find as FindPattern
from keptwork.agents.json_schema import Schema
from keptwork.errors import BadInput

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
