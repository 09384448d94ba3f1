"""Read YAML into plain data, with the line of each part.

Only plain YAML is accepted: no tags that create objects, no duplicate keys, and a limited number of parts, counted
after aliases are expanded. Words without quotes have the types of YAML 1.2 (document.py): `no`, `1_000`, a
date, and
a time of day are strings. Every value for a program is a string too, exactly as written, including `1.10`, `010`, and
`true`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import yaml

from keptwork.core.validation import Path
from keptwork.errors import BadFlow

# YAML's core schema, version 1.2: which unquoted words are not strings.
#
# These are numbers, `true` and `false`, and `null`. The library implements version 1.1, in which `no` and `on` are
# Booleans, `1_000` and `1:30` are numbers, and `010` is 8.


TAG = "tag:yaml.org,2002:"
MOST_DIGITS = 1_000

_WORDS = {
    "null": re.compile(r"|~|null|Null|NULL"),
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"),
    "float": re.compile(
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
    ),
}
_BEGIN = {"null": ["", *"~nN"], "bool": [*"tTfF"], "int": [*"-+0123456789"], "float": [*"-+.0123456789"]}
_BASES = {"0o": 8, "0x": 16}


def scalar(text: str) -> Any:
    """Return the value of an unquoted word. Raise ValueError for a number that cannot be stored.

    >>> [scalar(text) for text in ("no", "true", "1_000", "1:30", "010", "0o17", "1e3", "~", "1.10")]
    ['no', True, '1_000', '1:30', 10, 15, 1000.0, None, 1.1]
    """
    kind = next((kind for kind, words in _WORDS.items() if words.fullmatch(text)), None)
    return text if kind is None else value(kind, text)


def value(kind: str, text: str) -> Any:
    """Return the value of a word of this kind. Raise ValueError if the word is not of this kind."""
    if not _WORDS[kind].fullmatch(text):
        raise ValueError(f"{text!r} is no {kind}")
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    return _integer(text) if kind == "int" else _float(text)


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits cannot be kept")
    return int(text[2:], _BASES[text[:2]]) if text[:2] in _BASES else int(text)


def _float(text: str) -> float:
    number = math.inf if text.lower().endswith(("inf", "nan")) else float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number that could be kept")
    return number


class Loader(yaml.SafeLoader):
    """Loads plain data by this schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the library's own; its resolvers are left out


def load(text: str) -> Any:
    """Return the data of a document. Raise `YAMLError` if it is not valid YAML."""
    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _constructed(loader: Loader, node: yaml.ScalarNode) -> Any:
    try:
        return value(node.tag.removeprefix(TAG), loader.construct_scalar(node))
    except ValueError as error:
        raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from None


for _kind, _words in _WORDS.items():
    Loader.add_implicit_resolver(f"{TAG}{_kind}", re.compile(rf"(?:{_words.pattern})\Z"), _BEGIN[_kind])
    Loader.add_constructor(f"{TAG}{_kind}", _constructed)


LARGEST_TEXT = 1 << 20
MOST_PARTS = 50_000
DEEPEST = 50
FOR_PROGRAMS = ("command", "args", "env")

_MERGE = "<<"
_HALVES = re.compile("[\ud800-\udfff]")
_TEXTS = ("str", "timestamp")
_PLAIN = frozenset(f"{TAG}{name}" for name in (*_TEXTS, "int", "float", "bool", "null", "map", "seq"))

Place = int | str
"""The place of a part: its line in a text or, for other data, its path, such as `steps.1.timeout`."""


class Problem(NamedTuple):
    """A problem: its place, and what was expected."""

    line: Place
    what: str


class Document(NamedTuple):
    """Data, and the lines of its parts, from 1. `lines` is None if the data did not come from a text."""

    source: str
    data: Any
    lines: dict[Path, int] | None

    def line(self, path: Sequence[str | int]) -> Place:
        """Return the line of the part at this path or, if it has none, of the nearest part around it."""
        if self.lines is None:
            return ".".join(map(str, path))
        place = tuple(path)
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read(text: str, source: str) -> Document:
    """Return the document in a text. `source` is its name in errors."""
    if len(text) > LARGEST_TEXT:
        raise BadFlow.of(
            source, [Problem(1, f"the file has {len(text):,} characters; at most {LARGEST_TEXT:,} are read")]
        )
    try:
        root = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        raise BadFlow.of(source, [_syntax(error)]) from None
    except yaml.YAMLError as error:
        raise BadFlow.of(source, [Problem(1, f"this is no YAML: {error}")]) from None
    except RecursionError:
        raise BadFlow.of(source, [Problem(1, "it is nested too deeply to be read")]) from None
    if root is None:
        raise BadFlow.of(source, [Problem(1, "the file is empty; it should hold a flow with a name and steps")])
    return _Reading(source).document(root)


def _syntax(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    said = " ".join(part for part in (error.context, error.problem) if part)
    return Problem(mark.line + 1 if mark else 1, f"this is no YAML: {said}")


class _Reading:
    """One pass over the parts of a document."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lines: dict[Path, int] = {}
        self._parts = 0

    def document(self, root: yaml.Node) -> Document:
        return Document(self._source, self._value(root, ()), self._lines)

    def _value(self, node: yaml.Node, path: Path) -> Any:
        self._count(node, path)
        self._lines[path] = node.start_mark.line + 1
        if node.tag not in _PLAIN:
            self._refuse(node, f"the tag {node.tag.replace(TAG, '!!')} is not supported; only plain values are")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, place)) for place, item in enumerate(node.value)]
        return self._text(node) if _is_text(node, path) else self._scalar(node)

    def _text(self, node: yaml.Node) -> str:
        """Return the text, with surrogate pairs joined.

        JSON writes a character above U+FFFF as a surrogate pair, and YAML reads it as two characters.
        """
        text = str(node.value)
        if not _HALVES.search(text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self._refuse(node, "it holds half of a character; a pair such as \\ud83c\\udf89 is a whole one")

    def _scalar(self, node: yaml.Node) -> Any:
        try:
            return value(node.tag.removeprefix(TAG), node.value)
        except ValueError as error:
            self._refuse(node, f"{error}; put text like that in quotes")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in found:
                self._refuse(key_node, f"{key!r} stands here a second time")
            found[key] = self._value(value_node, (*path, key))
            self._lines[*path, key] = key_node.start_mark.line + 1
        return found

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(node, "a key must be a plain word")
        if node.value == _MERGE and node.style is None:
            self._refuse(node, f"{_MERGE} is not supported; write the keys out")
        # The key as written: YAML would turn 1 and true into other types.
        return self._text(node)

    def _count(self, node: yaml.Node, path: Path) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            self._refuse(node, f"there are more than {MOST_PARTS:,} parts in this file")
        if len(path) > DEEPEST:
            self._refuse(node, f"it is nested more than {DEEPEST} deep")

    def _refuse(self, node: yaml.Node, what: str) -> NoReturn:
        raise BadFlow.of(self._source, [Problem(node.start_mark.line + 1, what)])


def _is_text(node: yaml.Node, path: Path) -> bool:
    """Return whether a value is a string as written. A null value for a program stays null, which is rejected later."""
    kind = node.tag.removeprefix(TAG)
    to_a_program = len(path) == 4 and path[0] == "steps" and path[2] in FOR_PROGRAMS
    return kind in _TEXTS or (to_a_program and kind != "null")
