"""The trace a request belongs to: the header `traceparent` of W3C Trace Context.

A header that is none is passed over, as the standard has it: a caller's tracing never keeps its work from being done.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from keptwork import trace_context

HEADER = "traceparent"
PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "W3C Trace Context; its trace goes on in the job.",
}


async def trace(request: Request) -> str | None:
    """The dependency of a route that makes jobs."""
    return trace_context.received(request.headers.get(HEADER))


Trace = Annotated[str | None, Depends(trace)]
"""What is kept of it with what the request makes."""
