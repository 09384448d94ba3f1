"""The trace a request belongs to: the header `traceparent` of W3C Trace Context.

A header that is none is passed over, as the standard has it: a caller's tracing never keeps its work from being done.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Request

HEADER = "traceparent"

# A later version may say more behind the flags; version ff is none.
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


def trace_id(header: str | None) -> str | None:
    """The id of the trace in a header.

    >>> trace_id("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    '4bf92f3577b34da6a3ce929d0e0e4736'
    >>> trace_id("00-00000000000000000000000000000000-00f067aa0ba902b7-01") is trace_id("nonsense") is None
    True
    """
    found = _PARENT.fullmatch(header or "")
    if found is None or (found[0].startswith("00-") and found[2]):  # version 00 ends with the flags
        return None
    return found[1]


PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "W3C Trace Context; its trace goes on in the job.",
}


async def trace(request: Request) -> str | None:
    """The dependency of a route that makes jobs."""
    return trace_id(request.headers.get(HEADER))


Trace = Annotated[str | None, Depends(trace)]
