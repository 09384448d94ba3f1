"""Setting up OpenTelemetry's SDK for a process of ours, by the standard variables (OTEL_…) and nothing else.

A program that embeds Keptwork sets up tracing itself, and is followed (`spans.adopt`). That somebody wants traces never
keeps work from being done: what is missing for it is said in one line.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from keptwork import __version__, spans

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
OURS = "http/protobuf"
LAST_SECONDS = 3.0
"""So long at most a process that ends waits for a collector that does not answer."""

logger = logging.getLogger("keptwork")


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
        exporter.shutdown()  # it tries no more
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
    # It ends with us, and not again when the interpreter does.
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
    """What the environment says of the service wins: the SDK would let ours win."""
    said = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if said else {"service.name": service, "service.version": __version__}
