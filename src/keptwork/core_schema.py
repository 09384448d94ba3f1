"""YAML's core schema, version 1.2: which words without quotes stand for something else than themselves.

Those are numbers, `true` and `false`, and `null`. The library has the schema of version 1.1, by which `no` and `on` are
booleans too, `1_000` and `1:30` numbers, and `010` is 8.
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
    """What a word without quotes stands for; a number that cannot be kept is a `ValueError`.

    >>> [scalar(text) for text in ("no", "true", "1_000", "1:30", "010", "0o17", "1e3", "~", "1.10")]
    ['no', True, '1_000', '1:30', 10, 15, 1000.0, None, 1.1]
    """
    kind = next((kind for kind, words in _WORDS.items() if words.fullmatch(text)), None)
    return text if kind is None else value(kind, text)


def value(kind: str, text: str) -> Any:
    """The value of that kind that a word stands for; one that stands for none of it is a `ValueError`."""
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
    """Reads plain data by this schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - as the library has it; none of its own are left


def load(text: str) -> Any:
    """The data of a document; what is no YAML is a `YAMLError`."""
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
