"""A collector of traces on loopback: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.hook_server import HookServer, Reply, hook_server

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


class Collector:
    """What was received, and where to send it."""

    def __init__(self, server: HookServer) -> None:
        self._server = server

    @property
    def environment(self) -> dict[str, str]:
        """Sent twenty times a second, so that nobody waits for it."""
        address = f"http://{self._server.address}:{self._server.port}"
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    @property
    def raw(self) -> list[bytes]:
        """The bodies of the requests, unpacked."""
        assert {got.path for got in self._server.got} <= {"/v1/traces"}
        packed = [(got.headers.get("Content-Encoding") == "gzip", got.body) for got in self._server.got]
        return [gzip.decompress(body) if is_packed else body for is_packed, body in packed]

    @property
    def spans(self) -> list[Seen]:
        return [span for body in self.raw for span in _spans(body)]

    def wait(self, enough: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Those that have come when there are enough."""
        ends = time.monotonic() + PATIENCE_SECONDS
        while not enough(found := self.spans):
            assert time.monotonic() < ends, sorted(span.name for span in found)
            time.sleep(0.05)
        return found


def _spans(body: bytes) -> Iterator[Seen]:
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        service = _plain(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            yield from (_seen(span, service) for span in scope.spans)


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
    with hook_server(lambda number: Reply(200)) as server:
        yield Collector(server)
