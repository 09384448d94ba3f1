"""Limits on the parts of a job: the length of its names, its priority, and its attempts.

Every way to enqueue a job applies them, including the SQL function `keptwork_enqueue`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from keptwork.errors import BadInput

if TYPE_CHECKING:
    from pydantic import ValidationError


OWN_KINDS = "keptwork."
"""Prefix of the kinds of jobs that run steps."""

OWN_QUEUES = "run-"
"""Prefix of the queues that `keptwork run` creates, one for each flow.

Only the process that runs or resumes the flow serves its queue.
"""

LARGEST_INT = (1 << 31) - 1
LARGEST_PAYLOAD = 1 << 20
LONGEST_NAME = 200
LONGEST_KEY = 500
_LENGTHS = {"kind": LONGEST_NAME, "queue": LONGEST_NAME, "tenant": LONGEST_NAME}


def check_priority(priority: object) -> None:
    """Raise `BadInput` unless the priority is an integer that both databases can store."""
    if type(priority) is not int or abs(priority) > LARGEST_INT:
        raise BadInput(what=f"{priority!r} is no priority; it is a whole number from -{LARGEST_INT} to {LARGEST_INT}")


def check_attempts(attempts: object) -> None:
    """Raise `BadInput` unless the number is at least 1 and both databases can store it."""
    if type(attempts) is not int or not 1 <= attempts <= LARGEST_INT:
        raise BadInput(what=f"max_attempts is {attempts!r}; it must be at least 1 and at most {LARGEST_INT}")


def check_name(what: str, text: object) -> None:
    """Raise `BadInput` unless a kind, queue, key, or ID is printable text of limited length."""
    longest = _LENGTHS.get(what, LONGEST_KEY)
    if not isinstance(text, str) or not text.strip() or not text.isprintable():
        raise BadInput(what=f"{text!r} is no {what}; it must be printable text")
    if len(text) > longest:
        raise BadInput(what=f"a {what} of {len(text):,} characters is over the limit of {longest}")


def plain_json(what: str, value: Any) -> str:
    """Return the value as JSON without infinities and NaN, which not every database and reader accepts."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise BadInput(what=f"{what} cannot be kept as JSON: {error}") from None


# Describe the problems of a document: one line for each place where a model rejects it.


Path = tuple[str | int, ...]
"""The place of a value in a document: keys and positions from its root."""


def misfits(data: Any, error: ValidationError, known: Callable[[Path], Iterable[str]]) -> Iterator[tuple[Path, str]]:
    """Yield each place with the reason for its rejection.

    A value that matches none of several alternatives is reported once. `known` returns the allowed keys of a place.
    """
    found: dict[Path, list[Any]] = {}
    for one in error.errors(include_url=False):
        missing = one["loc"][-1:] if one["type"] == "missing" else ()
        found.setdefault((*_inside(data, one["loc"]), *missing), []).append(one)
    for path, several in found.items():
        yield path, _said(path, several, known)


def shown(value: object) -> str:
    """Return a value for display, shortened to fit a line."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _inside(data: Any, loc: Path) -> Path:
    """Return the place in the document. Parts that are not in the document are the model's names for alternatives."""
    path: list[str | int] = []
    for part in loc:
        if isinstance(data, dict) and part in data:
            data = data[str(part)]
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            continue
        path.append(part)
    return tuple(path)


def _said(path: Path, several: list[Any], known: Callable[[Path], Iterable[str]]) -> str:
    where, one = _named(path), several[0]
    if one["type"] == "extra_forbidden":
        return f"{where} is no key that is known here{_meant(path, known)}"
    if one["type"] == "missing":
        return f"{where} is missing"
    if one["type"] == "value_error":
        return f"{where}: {one['ctx']['error']}"
    if one["type"] in _SIZES:
        return f"{where}: {_SIZES[one['type']].format(**one['ctx'])}"
    expected = " or ".join(dict.fromkeys(_expected(each["msg"]) for each in several))
    return f"{where}: it should be {expected}; it is {shown(one['input'])}{_how(expected, one['input'])}"


_SIZES = {
    "too_short": "it should have at least {min_length:,} of them; it has {actual_length:,}",
    "too_long": "it should have at most {max_length:,} of them; it has {actual_length}",
    "string_too_short": "it should have at least {min_length:,} characters",
    "string_too_long": "it should have at most {max_length:,} characters",
}
"""The messages for values that are too small or too large, by the model's error type."""


def _how(expected: str, value: object) -> str:
    """Return how to write what is expected: `1.10` needs quotes to be a string, and `yes` is a string without them."""
    if expected == "a string" and isinstance(value, bool | int | float):
        return "; put text like that in quotes"
    return "; write true or false" if expected == "a boolean" and isinstance(value, str) else ""


def _expected(message: str) -> str:
    """Return only what was expected, from the model's message."""
    text = message.removeprefix("Input should be ").removeprefix("a valid ").removeprefix("an instance of ")
    text = text.partition(" or instance of ")[0]
    text = {"dictionary": "mapping"}.get(text, text)
    article = "an" if text[:1] in "aeiou" else "a"
    return f"{article} {text}" if text.isalpha() else text


def _named(path: Path) -> str:
    """Return the place for display, such as steps[2].timeout."""
    text = ""
    for part in path:
        text += f"[{part + 1}]" if isinstance(part, int) else f"{'.' if text else ''}{part}"
    return text


def _meant(path: Path, known: Callable[[Path], Iterable[str]]) -> str:
    """Suggest a known key that resembles this one."""
    from difflib import get_close_matches

    close = get_close_matches(str(path[-1]), list(known(path)), 1)
    return f"; did you mean {close[0]}?" if close else ""
