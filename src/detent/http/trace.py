"""The trace a request belongs to: the header `traceparent` of W3C Trace Context.

A header that is none is passed over, as the standard has it: a caller's tracing never keeps its work from being done.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Header

from detent import trace_context


async def _trace(
    traceparent: Annotated[str | None, Header(description="W3C Trace Context; its trace goes on in the job.")] = None,
) -> str | None:
    return trace_context.received(traceparent)


Trace = Annotated[str | None, Depends(_trace)]
"""What is kept of it with what the request makes."""
