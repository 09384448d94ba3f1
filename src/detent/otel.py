"""Setting up OpenTelemetry's SDK for a process of ours, by the standard variables (OTEL_…) and nothing else.

A program that embeds Detent sets up tracing itself, and is followed (`spans.adopt`). That somebody wants traces never
keeps work from being done: what is missing for it is said in one line.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from detent import __version__, spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OURS = "http/protobuf"
FLUSH_MS = 5_000

logger = logging.getLogger("detent")


def exporter_wanted(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where spans are to go: "otlp", "console", or nowhere.

    >>> exporter_wanted({}), exporter_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318"})
    (None, 'otlp')
    >>> exporter_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"})
    >>> exporter_wanted({"OTEL_TRACES_EXPORTER": "console"})
    'console'
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    usual = "otlp" if any(environ.get(name, "").strip() for name in ENDPOINTS) else "none"
    wanted = environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() or usual
    return None if wanted == "none" else wanted


@contextmanager
def traced(service: str) -> Iterator[None]:
    """While a command of ours runs, its spans go where the environment says; what is left is sent at the end."""
    spans.adopt()
    wanted = exporter_wanted()
    provider = _provider(wanted, service) if wanted is not None and spans.tracer is None else None
    if provider is None:
        yield
        return
    spans.use(provider)
    try:
        yield
    finally:
        spans.use(None)
        provider.force_flush(FLUSH_MS)
        provider.shutdown()


def _provider(wanted: str, service: str) -> TracerProvider | None:
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(wanted)
    except ImportError as missing:
        logger.warning("no traces: %s is not installed; pip install 'detent[otel]'", missing.name)
        return None
    if exporter is None:
        return None
    # It ends with us, and not again when the interpreter does.
    provider = TracerProvider(resource=Resource.create(_about(service)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter(wanted: str) -> SpanExporter | None:
    if wanted == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)  # stdout is for results
    protocol = next((os.environ[name] for name in PROTOCOLS if os.environ.get(name)), OURS)
    if wanted != "otlp" or protocol != OURS:
        said = f"OTEL_TRACES_EXPORTER={wanted}" if wanted != "otlp" else f"the protocol {protocol}"
        logger.warning("no traces: %s is not known here; there are otlp over %s, console and none", said, OURS)
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _about(service: str) -> dict[str, str]:
    """What the environment says of the service wins: the SDK would let ours win."""
    said = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if said else {"service.name": service, "service.version": __version__}
