"""Moments as callers write them."""

from __future__ import annotations

from datetime import UTC, datetime

from skillery.errors import InvalidParams
from skillery.formats.wording import quoted


def parse_moment(text: str, param: str) -> datetime:
    """A date or a time in ISO 8601 (`2026-11-22`, `2026-11-22T09:30:00Z`), in UTC where it names no zone.

    Raises InvalidParams.
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidParams(
            f"'{param}' is {quoted(text)}, which is no time",
            hint="Write it as 2026-11-22 or 2026-11-22T09:30:00Z.",
            param=param,
        ) from None
