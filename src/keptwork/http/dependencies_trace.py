"""The trace of a request: the header `traceparent` of W3C Trace Context.

An invalid header is ignored, as the standard requires, so that a caller's tracing never prevents its work.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from keptwork.observability import spans_trace_context

HEADER = "traceparent"
PARAMETER = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "W3C Trace Context. The trace continues in the job.",
}


async def trace(request: Request) -> str | None:
    """Return the trace that a route stores with the jobs it creates."""
    return spans_trace_context.received(request.headers.get(HEADER))


Trace = Annotated[str | None, Depends(trace)]
"""The trace, as it is stored with what the request creates."""
