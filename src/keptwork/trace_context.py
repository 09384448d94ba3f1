"""A place in a trace, as W3C Trace Context has it, and how it is kept.

The column `trace_id` of every entity and event holds what was said of its trace: the id of a trace as somebody calls
it, or a place in a trace by the standard, which begins with the trace's id, so that rows are found by it:

    4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    trace                            span             flags

People are shown the id of the trace alone. `tracestate` is not kept: the standard lets it be left out.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import NamedTuple

# A later version may say more behind the flags; version ff is none.
_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEPT = re.compile(r"(?:00-)?(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_KNOWN_FLAGS = 0x03

ambient: ContextVar[str | None] = ContextVar("keptwork_trace", default=None)
"""The place of the request that is answered here, or of the job that runs: what they make belongs to that trace."""


class Place(NamedTuple):
    """A place in a trace, which spans can go on from."""

    trace: str
    span: str
    flags: str


def received(header: str | None) -> str | None:
    """What is kept of a header `traceparent`; none of one that is none. Flags nobody has defined are not passed on.

    >>> received("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
    >>> received("00-00000000000000000000000000000000-00f067aa0ba902b7-01") is received("nonsense") is None
    True
    """
    found = _HEADER.fullmatch(header or "")
    if found is None or (found[1] == "00" and found[4]):  # version 00 ends with the flags
        return None
    return f"{found[2]}-{int(found[3], 16) & _KNOWN_FLAGS:02x}"


def said(text: str | None) -> str | None:
    """What is kept of what somebody calls their trace: a header as such, anything else as it is."""
    return received(text) or text


def place(kept: str | None) -> Place | None:
    """The place that was kept; none of what is only a name. SQL typed elsewhere may have kept a whole header."""
    found = _KEPT.fullmatch(kept or "")
    return None if found is None else Place(found[1], found[2], found[3])


def trace_id(kept: str | None) -> str | None:
    """The id of the trace alone.

    >>> trace_id("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), trace_id("order-17")
    ('4bf92f3577b34da6a3ce929d0e0e4736', 'order-17')
    """
    found = place(kept)
    return kept if found is None else found.trace


def traceparent(kept: str | None) -> str | None:
    """The header that passes a place on; none of what is no place."""
    found = place(kept)
    return None if found is None else f"00-{'-'.join(found)}"
