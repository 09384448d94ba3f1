"""Positions in a trace, as defined by W3C Trace Context, and their stored form.

The column `trace_id` of every entity and event holds either a user's own trace ID or a position in a trace by the
standard. A position starts with the ID of its trace, so that rows can be found by that ID:

    4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    trace                            span             flags

Users see only the trace ID. `tracestate` is not stored, which the standard permits.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import NamedTuple

# A later version can add fields after the flags. Version ff is invalid.
_HEADER = re.compile(r"(?!ff)([0-9a-f]{2})-((?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_KEPT = re.compile(r"(?:00-)?(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})")
_KNOWN_FLAGS = 0x03

ambient: ContextVar[str | None] = ContextVar("keptwork_trace", default=None)
"""The position of the current request or job. Rows that it creates belong to the same trace."""


class Place(NamedTuple):
    """A position in a trace, from which spans can continue."""

    trace: str
    span: str
    flags: str


def received(header: str | None) -> str | None:
    """Return the stored form of a `traceparent` header, or None if it is invalid.

    Undefined flags are removed.

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
    """Return the stored form of a user's trace: a position for a header, any other text unchanged."""
    return received(text) or text


def place(kept: str | None) -> Place | None:
    """Return the stored position, or None for a user's own trace ID.

    Rows that were written by SQL can contain a complete header.
    """
    found = _KEPT.fullmatch(kept or "")
    return None if found is None else Place(found[1], found[2], found[3])


def trace_id(kept: str | None) -> str | None:
    """Return only the trace ID.

    >>> trace_id("4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), trace_id("order-17")
    ('4bf92f3577b34da6a3ce929d0e0e4736', 'order-17')
    """
    found = place(kept)
    return kept if found is None else found.trace


def traceparent(kept: str | None) -> str | None:
    """Return the header that passes on a position, or None if there is no position."""
    found = place(kept)
    return None if found is None else f"00-{'-'.join(found)}"
