"""The public interface of traces: makes endpoints send spans."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.endpoint.envelopes.envelopes import Envelopes
from holdfast.endpoint.envelopes.tracing import MISSING, Tracing
from holdfast.exceptions import ConfigurationError
from holdfast.settings import brief_value

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from holdfast.endpoint.destination.destination import Destination
    from holdfast.endpoint.source import sync
    from holdfast.endpoint.source.source import Source


def trace(endpoint: Destination | Source | sync.Source, provider: TracerProvider | None = None) -> None:
    """Tell what an endpoint does with its messages as spans of OpenTelemetry.

    Spans are "holdfast send" (a source takes a message over), "holdfast accept" with "holdfast store" in it,
    "holdfast deliver" (a handler has it) and "holdfast forward" (each transmission).

    Args:
        endpoint: Before it is started.
        provider: Where spans go; None: the process's own, which ``opentelemetry.trace.set_tracer_provider`` sets.

    Raises:
        ConfigurationError: OpenTelemetry is not installed, or an argument has the wrong type.
    """
    if not isinstance(getattr(endpoint, "_envelopes", None), Envelopes):
        raise ConfigurationError(
            f"endpoint cannot be {brief_value(endpoint)}",
            remedy="It may be a holdfast.Source, a holdfast.sync.Source or a holdfast.Destination.",
        )
    if provider is not None and not callable(getattr(provider, "get_tracer", None)):
        raise ConfigurationError(
            f"provider cannot be {brief_value(provider)}",
            remedy="It may be a TracerProvider of OpenTelemetry, or None.",
        )
    endpoint._envelopes.tracing = Tracing(provider)


def exporting_provider() -> TracerProvider:
    """Return a provider that sends spans by OTLP over HTTP, as OpenTelemetry's environment variables say: such as
    ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME`` (``holdfast`` without it), ``OTEL_TRACES_SAMPLER``.

    Raises:
        ConfigurationError: A required package is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider as Provider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigurationError(f"traces need OpenTelemetry: {error}", remedy=MISSING) from error
    named = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "holdfast"}
    provider = Provider(resource=Resource.create(named))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
