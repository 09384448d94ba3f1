"""A collector of traces on loopback: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_SECONDS = 30.0


@dataclass
class Seen:
    """A span as it came over the wire."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    attributes: dict[str, Any]
    links: list[str]
    failed: bool
    service: str
    events: list[Any] = field(default_factory=list)


@dataclass
class Collector:
    """What was received, and where to send it."""

    address: str
    raw: list[bytes] = field(default_factory=list)
    spans: list[Seen] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Sent twenty times a second, so that nobody waits for it."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.address, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def receive(self, body: bytes) -> None:
        self.raw.append(body)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = _plain(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_seen(span, about["service.name"]) for span in scope.spans]

    def wait(self, enough: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Those that have come when there are enough."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while not enough(list(self.spans)):
            assert time.monotonic() < ends, sorted(span.name for span in self.spans)
            time.sleep(0.01)
        return list(self.spans)


def _plain(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _seen(span: Any, service: str) -> Seen:
    links = [link.span_id.hex() for link in span.links]
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    failed = span.status.code == span.status.STATUS_CODE_ERROR
    return Seen(
        span.name, span.kind, *ids, _plain(span.attributes), links, failed, service, [e.name for e in span.events]
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            packed = self.headers.get("Content-Encoding") == "gzip"
            assert self.path == "/v1/traces"
            collector.receive(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing of what a server usually says."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
