"""Resolve references into program output: text without its final newline, and no value where output was truncated.

The output itself is stored as the program printed it. It is recognized by its keys: as the output of a step, as an item
of a list, or inside the output of a flow.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from keptwork.flows.expression import Absent

STREAMS = ("stdout", "stderr")
JSON, RAW = "json", "raw"
OUTPUT = frozenset({*STREAMS, "exit_code", "seconds", "truncated", JSON})
"""The keys that identify program output."""

READ = frozenset({*STREAMS, JSON})
TRUNCATED = "truncated: "
"""Prefix of the reason of a successful step whose output was truncated."""

_CUT = {
    JSON: "stdout was truncated, so it is not JSON; print less, or write to a file",
    **{
        name: f"{name} was truncated; `truncated: allow` in the step that uses it accepts what is left"
        for name in STREAMS
    },
}

MOST_NAMED = 3
_MARK = '"truncated":true'
Way = Sequence[str | int]


def is_output(value: Any) -> bool:
    """Return whether a value is the output of a program."""
    return isinstance(value, dict) and value.keys() >= OUTPUT and all(isinstance(value[one], str) for one in STREAMS)


def read(output: dict[str, Any], way: Way, *, raw: bool, cut: bool) -> tuple[Any, Way]:
    """Return the value that the first part of a path has in program output, and the remaining parts.

    >>> read({"stdout": "go\\n", "truncated": False}, ["stdout"], raw=False, cut=False)
    ('go', [])
    """
    name, rest = str(way[0]), way[1:]
    if not cut and was_cut(output, name):
        raise Absent(_CUT[name])
    if name == JSON:
        return _json(output), rest
    if rest and rest[0] == RAW:
        return output[name], rest[1:]
    return output[name] if raw else _without_newline(output[name]), rest


def was_cut(output: dict[str, Any], name: str) -> bool:
    """Return whether a stream, or the JSON read from it, was truncated. Older outputs do not name the stream."""
    return bool(output.get(f"{_stream(name)}_truncated", output["truncated"]))


def _stream(name: str) -> str:
    return STREAMS[0] if name == JSON else name


def _json(output: dict[str, Any]) -> Any:
    """Return the parsed stdout. Null is a value only if the program printed it, or if truncation was accepted."""
    found = output[JSON]
    if found is None and output["stdout"].strip() != "null" and not was_cut(output, JSON):
        raise Absent("stdout is not JSON")
    return found


def _without_newline(text: str) -> str:
    return text.removesuffix("\n").removesuffix("\r") if text.endswith("\n") else text


# --- truncated output


def cut_in(text: str | None) -> str | None:
    """Return a text that names the truncated streams in a step's output, given as JSON, or None.

    >>> cut_in('{"stdout":"","stderr":"","exit_code":0,"json":null,"seconds":1,"truncated":true}')
    'truncated: stdout, stderr'
    """
    if not text or _MARK not in text:
        return None
    found = list(_cuts(json.loads(text), ""))
    more = ", …" if len(found) > MOST_NAMED else ""
    return f"{TRUNCATED}{', '.join(found[:MOST_NAMED])}{more}" if found else None


def _cuts(value: Any, place: str) -> Iterator[str]:
    """Yield the truncated streams in the output of a step, the items of a list, and the steps of a flow."""
    if is_output(value):
        of = f" of {place}" if place else ""
        yield from (f"{name}{of}" for name in STREAMS if value["truncated"] and was_cut(value, name))
    elif isinstance(value, dict):
        items, steps = value.get("items"), value.get("steps")
        for number, item in enumerate(items if isinstance(items, list) else ()):
            yield from _cuts(item, f"{place}[{number}]")
        for name, step in steps.items() if isinstance(steps, dict) else ():
            yield from _cuts(step, f"{place}.{name}" if place else str(name))
