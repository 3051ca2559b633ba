"""JSON values as JSON Schema sees them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import date, datetime, time
from typing import Any


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Any) -> bool:
    return is_number(value) and (isinstance(value, int) or value.is_integer())


TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "number": is_number,
    "integer": is_integer,
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
}


def type_of(value: Any) -> str:
    if is_integer(value):
        return "integer"
    return next(name for name, fits in TYPES.items() if fits(value))


def identity(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0 are one, 1 and true are not, keys have no order."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def shown(value: Any, limit: int = 80) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _parses(parse: Callable[[str], Any], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


_EMAIL = re.compile(r"[^@\s]{1,64}@(?:[\w-]{1,63}\.)+[^\W\d_]{2,24}")
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"{}|\\^`]+")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[+-][0-9]{2}:[0-9]{2})?")
_DATE_TIME = re.compile(_DATE.pattern + r"[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})")

FORMATS: dict[str, Callable[[str], bool]] = {
    "date": lambda text: bool(_DATE.fullmatch(text)) and _parses(date.fromisoformat, text),
    "time": lambda text: bool(_TIME.fullmatch(text)) and _parses(time.fromisoformat, text),
    "date-time": lambda text: bool(_DATE_TIME.fullmatch(text)) and _parses(datetime.fromisoformat, text.upper()),
    "email": lambda text: bool(_EMAIL.fullmatch(text)),
    "uri": lambda text: bool(_URI.fullmatch(text)),
    "uuid": lambda text: bool(_UUID.fullmatch(text)),
}
