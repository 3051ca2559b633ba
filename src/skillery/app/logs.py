"""The log of a server: one line per event, as text or as JSON, with the id of the request."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import msgspec

from skillery.context import request
from skillery.settings import Settings

QUIET = ("uvicorn", "alembic", "litestar", "asyncio", "httpx", "httpcore", "opentelemetry", "mcp", "sse_starlette")


def start_log(settings: Settings) -> None:
    """Send the log to stderr, in the format and with the level that the settings name."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if settings.log_format == "json" else TextLines())
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.error").addFilter(_is_not_cancellation)
    if settings.log_level != "debug":
        for name in QUIET:
            logging.getLogger(name).setLevel("WARNING")


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
        return {str(name): _encodable(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(one) for one in value]
    return value


def _is_not_cancellation(record: logging.LogRecord) -> bool:
    """Return False for tracebacks of cancelled tasks. A second signal cancels them and ends the orderly shutdown."""
    text = f"{record.exc_info or ''}{record.msg}"
    return "CancelledError" not in text
