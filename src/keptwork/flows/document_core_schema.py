"""YAML's core schema, version 1.2: which unquoted words are not strings.

These are numbers, `true` and `false`, and `null`. The library implements version 1.1, in which `no` and `on` are
Booleans, `1_000` and `1:30` are numbers, and `010` is 8.
"""

from __future__ import annotations

import math
import re
from typing import Any

import yaml

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
