"""The log of a server (a line per event, as text or JSON, with the id of the request), and its traces."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from skillery.context import request
from skillery.errors import StartupError
from skillery.settings.load import Settings

if TYPE_CHECKING:
    from litestar.plugins import InitPlugin
    from opentelemetry.sdk.trace import TracerProvider


QUIET = ("uvicorn", "alembic", "litestar", "asyncio", "httpx", "httpcore", "opentelemetry", "mcp", "sse_starlette")


def start_log(settings: Settings) -> None:
    """Send the log to stderr, in the format and with the level that the settings name."""
    handler = LogLines()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(_is_not_cancellation)
    if settings.log_level != "debug":
        for name in QUIET:
            logging.getLogger(name).setLevel("WARNING")


REPEATED_SECONDS = 30.0
"""Seconds in which equal warnings are one line, and after which another line has their number."""
MOST_REPEATED = 100
"""The maximum number of warnings that are compared. Others are written as they come."""


class LogLines(logging.StreamHandler[TextIO]):
    """Writes the log to stderr. Equal warnings are one line, and later a line with their number.

    An outage would be hundreds of them. Lines with a traceback are never left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counted: dict[tuple[str, int, str, str], _Repeated] = {}

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING or record.exc_info:
            super().emit(record)
            return
        key = (record.name, record.levelno, record.msg, str(record.args))
        repeated = self._counted.get(key)
        if repeated is not None:
            repeated.count += 1
            return
        if len(self._counted) < MOST_REPEATED:
            self._counted[key] = _Repeated(record)
        super().emit(record)

    def report(self, seconds: float = REPEATED_SECONDS) -> None:
        """Write a line for each warning that was first written over `seconds` seconds ago and was repeated since."""
        with self.lock or nullcontext():
            now = time.monotonic()
            for key in [key for key, repeated in self._counted.items() if now - repeated.since >= seconds]:
                repeated = self._counted.pop(key)
                if repeated.count:
                    super().emit(repeated.summary(now))

    def close(self) -> None:
        self.report(0)
        super().close()


class _Repeated:
    """A warning, the time at which it was written, and how often it was repeated since."""

    def __init__(self, record: logging.LogRecord) -> None:
        self.since = time.monotonic()
        self.count = 0
        self._record = record

    def summary(self, now: float) -> logging.LogRecord:
        text = f"{self.count} more times in {now - self.since:.0f} s: {self._record.getMessage()}"
        first = self._record
        record = logging.LogRecord(first.name, first.levelno, first.pathname, first.lineno, text, None, None)
        record.fields = {**getattr(first, "fields", {}), "more": self.count}
        return record


def report_repeated() -> None:
    """Write the numbers of repeated warnings that are due. A server calls this often."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LogLines):
            handler.report()


class TextLines(logging.Formatter):
    """Formats an event as text: `2026-01-31 12:00:00,000 INFO skillery.x [request id]: message`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(request)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        request_id = request.current_id()
        record.request = f" [{request_id}]" if request_id else ""
        return super().format(record)


class JsonLines(logging.Formatter):
    """Formats an event as a JSON object in one line, with `time`, `level`, `logger` and `message`.

    If present, `request_id`, `exception` and the fields of the event (`extra={"fields": {…}}`) are added.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = request.current_id()
        if request_id:
            line["request_id"] = request_id
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        line |= getattr(record, "fields", {})
        try:
            return msgspec.json.encode(line).decode()
        except UnicodeEncodeError:
            return msgspec.json.encode(_encodable(line)).decode()


def _encodable(value: object) -> object:
    """Return the value with lone surrogates replaced, because JSON cannot contain them."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {str(name): _encodable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(element) for element in value]
    return value


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Return False for tracebacks of cancelled tasks. A second signal cancels them and ends the orderly shutdown."""
    text = f"{record.exc_info or ''}{record.msg}"
    return "CancelledError" not in text


# -- OpenTelemetry: Litestar traces the requests, and `skillery.context.request` traces the steps inside a request -----


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
        """Return the Litestar plugin that makes a span for each request."""
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
    has_service_name = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    provider = TracerProvider(
        resource=Resource.create({} if has_service_name else {"service.name": "skillery"}), shutdown_on_exit=False
    )
    exporter = OTLPSpanExporter() if traces == "otlp" else OTLPSpanExporter(f"{traces.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return Tracing(provider)


def _span_details(scope: Any) -> tuple[str, dict[Any, str]]:
    """Return the name and the attributes of the span for a request. The names are a fixed set, which
    clients cannot extend with other addresses.
    """
    path = scope.get("path", "")
    endpoint = path if path in ENDPOINTS else "/blobs" if path.startswith("/blobs") else "elsewhere"
    # These attributes replace those of OpenTelemetry, which have the query: it may contain the code of a login.
    without_query = {"http.url": path, "url.query": ""} if scope.get("query_string") else {}
    return f"{scope.get('method', '')} {endpoint}", {"http.route": endpoint} | without_query
