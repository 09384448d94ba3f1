"""Set up the OpenTelemetry SDK for a Keptwork process, from the standard variables (OTEL_…) only.

A program that embeds Keptwork sets up tracing itself, and Keptwork uses that setup (`spans.adopt`). Missing
requirements for tracing never stop the work: one log line reports them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keptwork import __version__
from keptwork.observability import spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OURS = "http/protobuf"
LAST_SECONDS = 3.0
"""Maximum seconds that a process waits at its end for a collector that does not respond."""

logger = logging.getLogger("keptwork")


def exporter_wanted(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return where spans go: "otlp", "console", another configured name, or None.

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
    """Export the spans of a command as the environment configures, and send the remaining spans at the end."""
    spans.adopt()
    wanted = exporter_wanted()
    made = _made(wanted, service) if wanted is not None and spans.tracer is None else None
    if made is None:
        yield
        return
    provider, exporter = made
    spans.use(provider)
    try:
        yield
    finally:
        spans.use(None)
        _end(provider, exporter)


def _end(provider: TracerProvider, exporter: SpanExporter) -> None:
    last = threading.Thread(target=provider.shutdown, daemon=True)
    last.start()
    last.join(LAST_SECONDS)
    if last.is_alive():
        exporter.shutdown()  # makes the exporter stop its retries
        last.join(1.0)


def _made(wanted: str, service: str) -> tuple[TracerProvider, SpanExporter] | None:
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(wanted)
    except ImportError as missing:
        logger.warning("no traces: %s is not installed; pip install 'keptwork[otel]'", missing.name)
        return None
    if exporter is None:
        return None
    # The provider is shut down below, and must not be shut down again when the interpreter exits.
    provider = TracerProvider(resource=Resource.create(_about(service)), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider, exporter


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
    """Return the attributes of the service, unless the environment sets them: the SDK would let these override it."""
    said = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if said else {"service.name": service, "service.version": __version__}
