"""Record a request from start to end: a span, and a line in the access log.

They contain the method, the declared route, the status, the duration, the tenant, and the IDs of the request and the
trace. They contain neither the query nor headers, which can have keys, nor the body.
"""

from __future__ import annotations

import logging
import time
from types import TracebackType
from typing import Any, Protocol

from starlette.datastructures import Headers
from starlette.types import Scope

from keptwork.observability import logs, spans, spans_trace_context

UNSEEN = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths without spans, because machines request them every few seconds."""

SERVER_ERROR = 500


class Answered(Protocol):
    """The state of a response."""

    @property
    def status(self) -> int | None: ...


class Witness:
    """A context for one request: everything created and logged in it belongs to its trace.

    Each request runs in its own task, so nothing remains for the next request.
    """

    def __init__(self, scope: Scope, answer: Answered) -> None:
        self._scope = scope
        self._answer = answer
        self._began = time.perf_counter()
        self._span: Any = None

    def __enter__(self) -> None:
        headers, state = Headers(scope=self._scope), self._scope["state"]
        kept = spans_trace_context.received(headers.get("traceparent"))
        state["trace_id"] = spans_trace_context.trace_id(kept)
        spans_trace_context.ambient.set(kept)
        logs.request.set(state)
        if spans.tracer is not None and self._scope["path"] not in UNSEEN:
            self._open = spans.request(self._scope["method"], headers)
            self._span = self._open.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if logs.requests.isEnabledFor(logging.INFO):
            self._tell()
        if self._span is not None:
            self._end_span()
            self._open.__exit__(kind, error, trace)

    def _tell(self) -> None:
        milliseconds = round((time.perf_counter() - self._began) * 1000, 3)
        method, route, status = self._scope["method"], self._route, self._answer.status
        told = {"method": method, "route": route, "status": status, "ms": milliseconds}
        logs.requests.info("%s %s %s", method, route or "–", status or "left", extra={"keptwork": told})

    def _end_span(self) -> None:
        route, status = self._route, self._answer.status
        if route is not None:
            self._span.update_name(f"{self._scope['method']} {route}"[: spans.LONGEST_NAME])
            spans.noted(self._span, url__path=self._scope["path"])
        tenant = self._scope["state"].get("tenant")
        spans.noted(self._span, http__route=route, http__response__status_code=status, keptwork__tenant__id=tenant)
        if status is not None and status >= SERVER_ERROR:
            spans.failed(self._span, str(status))

    @property
    def _route(self) -> str | None:
        """The declared route, or None for an unknown path, which can contain anything."""
        return getattr(self._scope.get("route"), "path", None)
