"""Validates values against JSON Schema, for the answers of models and the arguments of tools.

It supports the common keywords of draft 2020-12. A schema with any other keyword is rejected, because that keyword
would not be checked. Messages about values explain how to fix them.
"""

from __future__ import annotations

import json
import math
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime
from fractions import Fraction
from itertools import pairwise
from types import TracebackType
from typing import Any, BinaryIO, cast
from urllib.parse import unquote, urlsplit
from uuid import UUID

from keptwork.errors import BadInput

# Apply regular expressions under a time limit.
#
# Python's regular expressions cannot be interrupted, and a small pattern can take years on the right text. A separate
# process applies them, and is killed if it takes too long. It starts with the first pattern.


LONGEST_PATTERN = 1_000
LONGEST_TEXT = 1 << 20
SECONDS = 2.0
CPU_SECONDS = 10
"""CPU limit of the separate process, in seconds. It ends that process even if this one is killed meanwhile."""

_PROGRAM = f"""
import json, re, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_SECONDS}, {CPU_SECONDS}))
for line in sys.stdin:
    pattern, text = json.loads(line)
    found = re.search(pattern, text)
    print(json.dumps(None if found is None else found.span()), flush=True)
"""


class TooSlow(Exception):
    """A pattern exceeded its time limit."""


def check(pattern: str) -> None:
    """Raise `BadInput` for an invalid regular expression, or one that is too long."""
    if len(pattern) > LONGEST_PATTERN:
        raise BadInput(what=f"a pattern of {len(pattern):,} characters is over the limit of {LONGEST_PATTERN:,}")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise BadInput(what=f"{pattern!r} is no regular expression: {error}") from None


class Patterns:
    """A process that applies patterns. Use it as a context manager, which ends the process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Patterns:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def find(self, pattern: str, text: str) -> tuple[int, int] | None:
        """Return the span of the first match, or None. Only the first mebibyte of the text is searched."""
        check(pattern)
        answer = self._asked(json.dumps([pattern, text[:LONGEST_TEXT]]).encode() + b"\n")
        if not answer:
            self.close()
            raise TooSlow(f"the pattern {pattern!r} takes too long with this text; it was given {self._seconds:g} s")
        span: Any = json.loads(answer)
        return None if span is None else (span[0], span[1])

    def _asked(self, question: bytes) -> bytes:
        """Return the response of the process, or nothing if it does not respond in time or is gone."""
        if self._process is None:
            command, pipe = [sys.executable, "-I", "-S", "-c", _PROGRAM], subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env={})
        stdin, stdout = cast("BinaryIO", self._process.stdin), cast("BinaryIO", self._process.stdout)
        try:
            stdin.write(question)
            stdin.flush()
            ready, _, _ = select.select([stdout], [], [], self._seconds)
            return stdout.readline() if ready else b""
        except OSError:
            return b""

    def close(self) -> None:
        """End the separate process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


Find = Callable[[str, str], object]
"""A search for a pattern in a text. It returns None if there is no match."""

DEEPEST = 64
MOST_BYTES = 256 << 10
LONGEST_SHOWN = 80

_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: (
        not isinstance(value, bool) and (isinstance(value, int) or (isinstance(value, float) and value.is_integer()))
    ),
}
_FORMATS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat,
    "date-time": datetime.fromisoformat,
    "uuid": UUID,
    "email": lambda text: (text.count("@") == 1 and not text.startswith("@") and not text.endswith("@")) or 1 / 0,
    "uri": lambda text: urlsplit(text).scheme or 1 / 0,
}

_NOTES = {
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "$schema",
    "$id",
    "$comment",
}
_SIZES: dict[str, tuple[Any, Callable[[int, int], bool], str]] = {
    "minLength": (str, lambda size, bound: size >= bound, "at least {} characters"),
    "maxLength": (str, lambda size, bound: size <= bound, "at most {} characters"),
    "minItems": (list, lambda size, bound: size >= bound, "at least {} elements"),
    "maxItems": (list, lambda size, bound: size <= bound, "at most {} elements"),
    "minProperties": (dict, lambda size, bound: size >= bound, "at least {} properties"),
    "maxProperties": (dict, lambda size, bound: size <= bound, "at most {} properties"),
}
_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "minimum": (lambda value, bound: value >= bound, "at least"),
    "maximum": (lambda value, bound: value <= bound, "at most"),
    "exclusiveMinimum": (lambda value, bound: value > bound, "more than"),
    "exclusiveMaximum": (lambda value, bound: value < bound, "less than"),
}
_ONE = ("items", "additionalProperties", "not", "propertyNames")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_OTHER = ("type", "enum", "const", "required", "uniqueItems", "pattern", "multipleOf", "format", "$ref")
KEYWORDS = frozenset((*_NOTES, *_SIZES, *_BOUNDS, *_ONE, *_MANY, *_NAMED, *_OTHER))


class Schema:
    """A validated schema, against which values can be checked."""

    def __init__(self, schema: object) -> None:
        self._root = schema
        if len(json.dumps(schema, default=str)) > MOST_BYTES:
            raise BadInput(what=f"a schema larger than {MOST_BYTES >> 10} KiB is not taken")
        for problem in self._wrong(schema, "the schema", 0):
            raise BadInput(what=problem)

    # --- faults of the schema

    def _wrong(self, schema: object, at: str, depth: int) -> Iterator[str]:
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            yield f"{at}: a schema is an object, or true or false; this is {shown(schema)}"
        elif depth > DEEPEST:
            yield f"{at}: a schema is at most {DEEPEST} deep"
        else:
            yield from self._wrong_here(schema, at)
            for name, inner in _inner(schema):
                yield from self._wrong(inner, f"{at}/{name}", depth + 1)

    def _wrong_here(self, schema: Mapping[str, Any], at: str) -> Iterator[str]:
        for name in schema:
            if name not in KEYWORDS:
                yield f"{at}: the keyword {name!r} is not understood; there are {', '.join(sorted(KEYWORDS - _NOTES))}"
        for name, value in schema.items():
            if name not in _NOTES and not _fits_keyword(name, value):
                yield f"{at}: {name} cannot be {shown(value)}"
        for pattern in [*_strings(schema.get("pattern")), *(schema.get("patternProperties") or ())]:
            try:
                check(pattern)
            except BadInput as refusal:
                yield f"{at}: {refusal}"
        if isinstance(reference := schema.get("$ref"), str) and self._target(reference) is None:
            yield f"{at}: $ref {reference!r} leads nowhere; it is like #/$defs/NAME"

    def _target(self, reference: str) -> object:
        """Return the target of a reference, or None if there is none."""
        found: Any = self._root
        if not reference.startswith("#"):
            return None
        for part in reference[1:].split("/")[1:]:
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or name not in found:
                return None
            found = found[name]
        return found if isinstance(found, Mapping | bool) else None

    # --- faults of a value

    def misfit(self, value: Any, find: Find) -> str | None:
        """Return what is wrong with a value, and where, or None if it fits."""
        return next(self._misfits(value, self._root, "", find, 0), None)

    def _misfits(self, value: Any, schema: Any, at: str, find: Find, depth: int) -> Iterator[str]:
        if depth > 2 * DEEPEST:
            yield _said(at, "it is nested too deeply")
        elif schema is False:
            yield _said(at, "nothing may stand here")
        elif schema is not True:
            yield from self._plain(value, schema, at, find)
            yield from self._joined(value, schema, at, find, depth + 1)
            if isinstance(value, dict):
                yield from self._object(value, schema, at, find, depth + 1)
            if isinstance(value, list):
                yield from self._array(value, schema, at, find, depth + 1)

    def _plain(self, value: Any, schema: Mapping[str, Any], at: str, find: Find) -> Iterator[str]:
        """Yield faults by keywords about the value itself."""
        types = _strings(schema.get("type"))
        if types and not any(_TYPES[name](value) for name in types):
            yield _said(at, f"it must be {_a(types)}, not {shown(value)}")
            return
        if "const" in schema and key(value) != key(schema["const"]):
            yield _said(at, f"it must be {shown(schema['const'])}, not {shown(value)}")
        if "enum" in schema and key(value) not in {key(one) for one in schema["enum"]}:
            yield _said(at, f"it must be one of {', '.join(map(shown, schema['enum']))}, not {shown(value)}")
        for name, (kind, fits, words) in _SIZES.items():
            if name in schema and isinstance(value, kind) and not fits(len(value), schema[name]):
                yield _said(at, f"it must have {words.format(schema[name])}, not {len(value)}")
        if _TYPES["number"](value):
            yield from _number(value, schema, at)
        if isinstance(value, str):
            yield from _text(value, schema, at, find)

    def _joined(self, value: Any, schema: Mapping[str, Any], at: str, find: Find, depth: int) -> Iterator[str]:
        def wrong(one: Any) -> str | None:
            return next(self._misfits(value, one, at, find, depth), None)

        if "$ref" in schema:
            yield from self._misfits(value, self._target(schema["$ref"]), at, find, depth)
        for one in schema.get("allOf", ()):
            yield from self._misfits(value, one, at, find, depth)
        misfits = [wrong(one) for one in schema.get("anyOf", ())]
        if misfits and None not in misfits:
            yield _said(at, f"it fits none of what it may be: {'; or '.join(filter(None, misfits))}"[:1_000])
        if "oneOf" in schema and (fitting := [wrong(one) for one in schema["oneOf"]].count(None)) != 1:
            yield _said(at, f"it must fit exactly one of {len(schema['oneOf'])} forms; it fits {fitting}")
        if "not" in schema and wrong(schema["not"]) is None:
            yield _said(at, f"it must not be what it is: {shown(value)}")

    def _object(
        self, value: dict[str, Any], schema: Mapping[str, Any], at: str, find: Find, depth: int
    ) -> Iterator[str]:
        for name in schema.get("required", ()):
            if name not in value:
                yield _said(at, f"{name!r} is missing")
        known, by_pattern = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, inner in value.items():
            if "propertyNames" in schema:
                yield from self._misfits(name, schema["propertyNames"], f"{at} (the name {name!r})", find, depth)
            here = [known[name]] if name in known else []
            here += [one for pattern, one in by_pattern.items() if find(pattern, name) is not None]
            if not here and schema.get("additionalProperties", True) is False:
                yield _said(at, f"{name!r} is not known there; it may have {', '.join(map(repr, known)) or 'nothing'}")
                continue
            for one in here or [schema.get("additionalProperties", True)]:
                yield from self._misfits(inner, one, f"{at}.{name}", find, depth)

    def _array(self, value: list[Any], schema: Mapping[str, Any], at: str, find: Find, depth: int) -> Iterator[str]:
        first = schema.get("prefixItems", ())
        for number, inner in enumerate(value):
            one = first[number] if number < len(first) else schema.get("items", True)
            yield from self._misfits(inner, one, f"{at}[{number}]", find, depth)
        if schema.get("uniqueItems") and any(a == b for a, b in pairwise(sorted(map(repr, map(key, value))))):
            yield _said(at, "two of its elements are the same")


def _number(value: float, schema: Mapping[str, Any], at: str) -> Iterator[str]:
    for name, (fits, words) in _BOUNDS.items():
        if name in schema and not fits(value, schema[name]):
            yield _said(at, f"it must be {words} {schema[name]}, not {shown(value)}")
    step = schema.get("multipleOf")
    if step is not None and Fraction(str(value)) % Fraction(str(step)):
        yield _said(at, f"it must be a multiple of {step}, not {shown(value)}")


def _text(value: str, schema: Mapping[str, Any], at: str, find: Find) -> Iterator[str]:
    if "pattern" in schema and find(schema["pattern"], value) is None:
        yield _said(at, f"it must match {schema['pattern']!r}; it is {shown(value)}")
    if "format" in schema:
        try:
            _FORMATS[schema["format"]](value)
        except (ValueError, ZeroDivisionError):
            yield _said(at, f"it must be a {schema['format']}, not {shown(value)}")


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the schemas inside one. A value of the wrong type is skipped here and reported elsewhere."""
    yield from ((name, schema[name]) for name in _ONE if name in schema)
    for name in _MANY:
        if isinstance(schema.get(name), list):
            yield from ((f"{name}/{number}", one) for number, one in enumerate(schema[name]))
    for name in _NAMED:
        if isinstance(schema.get(name), Mapping):
            yield from ((f"{name}/{inner}", one) for inner, one in schema[name].items())


def _fits_keyword(name: str, value: object) -> bool:
    """Return whether a keyword can have this value, apart from inner schemas."""
    if name in _SIZES:
        return isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if name in _BOUNDS or name == "multipleOf":
        return _is_number(value) and (name != "multipleOf" or value > 0)  # type: ignore[operator]  # it is a number
    if name in _MANY:
        return isinstance(value, list) and bool(value)
    if name in _NAMED:
        return isinstance(value, Mapping) and all(isinstance(one, str) for one in value)
    match name:
        case "type":
            return bool(_strings(value)) and all(one in _TYPES for one in _strings(value))
        case "enum":
            return isinstance(value, list) and bool(value)
        case "required":
            return isinstance(value, list) and all(isinstance(one, str) for one in value)
        case "uniqueItems":
            return isinstance(value, bool)
        case "format":
            return value in _FORMATS
        case "pattern" | "$ref":
            return isinstance(value, str)
    return True


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _strings(value: object) -> list[str]:
    found: list[Any] = value if isinstance(value, list) else [value]
    return found if all(isinstance(one, str) for one in found) else []


def key(value: Any) -> Any:
    """Return a key that is equal for values that JSON Schema calls equal. 1 equals 1.0, and neither equals true."""
    match value:
        case bool() | None | str():
            return (type(value).__name__, value)
        case int() | float():
            return ("number", Fraction(value) if math.isfinite(value) else str(value))
        case Mapping():
            return ("object", tuple(sorted((name, key(inner)) for name, inner in value.items())))
    return ("array", tuple(map(key, value)))


def shown(value: Any) -> str:
    """Return a value as short text."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _a(types: list[str]) -> str:
    return " or ".join("null" if one == "null" else f"{'an' if one[0] in 'aio' else 'a'} {one}" for one in types)


def _said(at: str, what: str) -> str:
    return f"{at.removeprefix('.') or 'the value'}: {what}"
