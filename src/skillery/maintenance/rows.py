"""Rows of tables as lines of JSON, for backups and for copies of databases."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import exc

from skillery.maintenance.backup_archives import damaged

INLINE = {"inline": True}
"""The value of a content that an incremental backup stores apart from its row."""
_WRAPPED = {bytes, memoryview, datetime}
_DAMAGED_ROW = (
    msgspec.MsgspecError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)


def encode_row(row: Iterable[Any]) -> bytes:
    """Return a row as one line of JSON. Bytes and times become the objects `{"bytes": base64}` and
    `{"at": ISO 8601}`.
    """
    return msgspec.json.encode([_plain(value) if type(value) in _WRAPPED else value for value in row]) + b"\n"


def decode_row(line: bytes) -> list[Any]:
    return [_value(value) for value in msgspec.json.decode(line, type=list[Any])]


def _plain(value: bytes | memoryview | datetime) -> dict[str, str]:
    if not isinstance(value, datetime):
        return {"bytes": base64.b64encode(value).decode()}
    # SQLite returns times without their zone, which is UTC.
    return {"at": value.astimezone(UTC).isoformat() if value.tzinfo else f"{value.isoformat()}+00:00"}


def _value(value: Any) -> Any:
    if not isinstance(value, dict) or value == INLINE:
        return value
    if "bytes" in value:
        return base64.b64decode(value["bytes"], validate=True)
    return datetime.fromisoformat(value["at"])


@contextmanager
def rows_are_valid(title: str, table: str) -> Iterator[None]:
    """Context manager that raises DamagedArchive if the rows of `table` cannot be decoded, or if the database refuses
    them.
    """
    try:
        yield
    except exc.OperationalError:  # of the database, not of the row
        raise
    except (*_DAMAGED_ROW, exc.StatementError):
        raise damaged(title, f"the table '{table}' has a row that does not belong there") from None
