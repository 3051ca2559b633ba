"""OpenTelemetry: Litestar traces the requests, and `skillery.context.tracing` traces the steps inside a request."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from skillery.errors import StartupError

if TYPE_CHECKING:
    from litestar.plugins import InitPlugin
    from opentelemetry.sdk.trace import TracerProvider

FLUSH_MS = 3_000
ENDPOINTS = frozenset({"/rpc", "/mcp", "/tools", "/prompt", "/import", "/metrics", "/healthz", "/readyz"})


class Tracing:
    """Sends spans to an OpenTelemetry collector. `close` sends the spans that are still buffered."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("skillery")

    def start(self, name: str, attributes: Mapping[str, str | int]) -> AbstractContextManager[Any]:
        # Messages of exceptions may contain content of the caller.
        return self._tracer.start_as_current_span(
            name, attributes=dict(attributes), record_exception=False, set_status_on_exception=False
        )

    def plugin(self) -> InitPlugin:
        from litestar.plugins.opentelemetry import OpenTelemetryConfig, OpenTelemetryPlugin
        from opentelemetry.metrics import NoOpMeterProvider

        return OpenTelemetryPlugin(
            OpenTelemetryConfig(
                tracer_provider=self._provider,
                meter_provider=NoOpMeterProvider(),
                scope_span_details_extractor=_span_details,
                exclude_spans=["receive", "send"],
            )
        )

    def close(self) -> None:
        """Send the buffered spans, and stop tracing. Blocks up to FLUSH_MS if the collector does not answer."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()


def open_tracing(traces: str) -> Tracing | None:
    """Return the tracing that the setting `traces` configures, or None if `traces` is `off`.

    Raise StartupError if the setting is not valid, or if packages for OpenTelemetry are missing.
    """
    if traces == "off":
        return None
    if traces != "otlp" and not traces.startswith(("http://", "https://")):
        raise StartupError(
            f"setting 'traces' is {traces!r}: write off, otlp (to the address in OTEL_EXPORTER_OTLP_ENDPOINT), or the "
            "address of a collector, http://host:4318"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.instrumentation import asgi  # noqa: F401 - Litestar's integration needs it
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise StartupError(
            f"setting 'traces' is {traces!r}, but {error.name or 'OpenTelemetry'} is not installed: "
            "pip install 'skillery[otel]'"
        ) from None
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    provider = TracerProvider(
        resource=Resource.create({} if named else {"service.name": "skillery"}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter() if traces == "otlp" else OTLPSpanExporter(f"{traces.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def _span_details(scope: Any) -> tuple[str, dict[Any, str]]:
    """Return the name and the attributes of the span for a request. The names are a fixed set, whatever address a
    client requests.
    """
    path = scope.get("path", "")
    endpoint = path if path in ENDPOINTS else "/blobs" if path.startswith("/blobs") else "elsewhere"
    # These attributes replace those of OpenTelemetry, which have the query: it may contain the code of a login.
    without_query = {"http.url": path, "url.query": ""} if scope.get("query_string") else {}
    return f"{scope.get('method', '')} {endpoint}", {"http.route": endpoint} | without_query
