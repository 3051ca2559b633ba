"""Timestamps as people write them: a date, a time, or a duration before or after now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import overload

from skillery.errors import InvalidParams
from skillery.formats.wording import quoted

# -- Durations in short form, for example `90d` or `12h` ---------------------------------------------------------------


LONGEST = timedelta(days=3650)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHORT = re.compile(r"([1-9][0-9]{0,8})([smhdw])")
_ALMOST = re.compile(r"([1-9][0-9]{0,8})\s*([a-z]+)", re.IGNORECASE)


def parse_duration(text: str, param: str) -> timedelta:
    """Return the duration for a text such as `90d` (units `s`, `m`, `h`, `d`, `w`). `param` names the parameter in
    errors.

    Raise InvalidParams if the text is not a duration or means more than ten years.
    """
    match = _SHORT.fullmatch(text)
    if match is None:
        almost = _ALMOST.fullmatch(text.strip())
        suggestion = f"{almost[1]}{almost[2][0].lower()}" if almost and almost[2][0].lower() in _UNITS else None
        guess = f" (did you mean {quoted(suggestion)}?)" if suggestion else ""
        raise InvalidParams(
            f"{quoted(text)} is not a duration{guess}",
            hint="Write a number and s, m, h, d or w, for example 90d or 12h.",
            param=param,
        )
    duration = timedelta(**{_UNITS[match[2]]: int(match[1])}) if len(match[1]) < 9 else LONGEST * 2
    if duration > LONGEST:
        raise InvalidParams(
            f"{quoted(text)} is longer than the longest duration ({LONGEST.days}d)",
            hint=f"Write at most {LONGEST.days}d.",
            param=param,
        )
    return duration


def parse_age(text: str) -> timedelta | None:
    """Return the duration for a text such as `24h`, at most LONGEST, or None if the text is not a duration."""
    match = _SHORT.fullmatch(text)
    if match is None:
        return None
    return min(timedelta(**{_UNITS[match[2]]: int(match[1])}), LONGEST) if len(match[1]) < 9 else LONGEST


_DURATION = re.compile(r"([1-9][0-9]{0,6})([smhdw])")
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_LONGEST = timedelta(days=36_500)


def parse_timestamp(text: str, param: str, now: datetime) -> datetime:
    """Return the stated time in UTC. Raise InvalidParams, which names `param`, if the text is not a time.

    The text is a date or time in ISO 8601 (`2026-11-22`, `2026-11-22T09:30:00Z`), or an age: `24h` means 24 hours
    before `now`. A time without a zone is in UTC.
    """
    age = parse_age(text)
    if age is not None:
        return now - age
    try:
        timestamp = datetime.fromisoformat(text)
        return timestamp.astimezone(UTC) if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise InvalidParams(
            f"'{param}' is {quoted(text)}, which is not a time",
            hint="Write 2026-11-22T10:00:00Z, a day (2026-11-22), or an age: 90m, 24h, 7d.",
            param=param,
        ) from None


def parse_until(text: str, now: datetime) -> datetime | None:
    """Return the stated end in UTC, or None for "" and `never`: no end. Raise InvalidParams for any other text.

    The text is a duration from now (`90d`; units `s`, `m`, `h`, `d`, `w`), a date in UTC, or a time with its zone as in
    RFC 3339. A date such as `2027-01-31` includes that whole day. The end must be in the future and at most 100 years
    away.
    """
    if text in {"", "never"}:
        return None
    end = _parsed(text, now)
    if end is None:
        raise _refused(f"{quoted(text)} is not a time")
    if not now < end <= now + _LONGEST:
        raise _refused(f"{quoted(text)} is {'in the past' if end <= now else 'too far in the future'}")
    return end


def _parsed(text: str, now: datetime) -> datetime | None:
    """Return the end in UTC that the text states, or None if it states none. A very long duration becomes too long, not
    an error.
    """
    duration = _DURATION.fullmatch(text)
    if duration:
        return now + min(timedelta(**{_UNITS[duration[2]]: int(duration[1])}), 2 * _LONGEST)
    try:
        if _DATE.fullmatch(text):
            return datetime.fromisoformat(text).replace(tzinfo=UTC) + timedelta(days=1)
        timestamp = datetime.fromisoformat(text)
        return timestamp.astimezone(UTC) if timestamp.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _refused(message: str) -> InvalidParams:
    hint = "Write a date such as 2027-01-31, a time such as 2027-01-31T12:00:00Z, or how long: 90d, 12h."
    return InvalidParams(message, hint=hint, param="until")


def timestamp_text(timestamp: datetime | None) -> str | None:
    """Return the time as RFC 3339 in UTC, with whole seconds, or None for None."""
    if timestamp is None:
        return None
    # SQLite returns times without a zone.
    aware = timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)
    return aware.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@overload
def instant_text(instant: None) -> None: ...
@overload
def instant_text(instant: datetime) -> str: ...
def instant_text(instant: datetime | None) -> str | None:
    """Return a time in UTC as RFC 3339 with microseconds, which sorts by time. A year before 1000 has four digits."""
    return None if instant is None else instant.isoformat(timespec="microseconds").replace("+00:00", "Z")
