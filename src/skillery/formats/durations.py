"""Durations in short form, for example `90d` or `12h`."""

from __future__ import annotations

import re
from datetime import timedelta

from skillery.errors import InvalidParams
from skillery.formats.wording import quoted

LONGEST = timedelta(days=3650)
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DURATION = re.compile(r"([1-9][0-9]{0,8})([smhdw])")
_ALMOST = re.compile(r"([1-9][0-9]{0,8})\s*([a-z]+)", re.IGNORECASE)


def parse_duration(text: str, param: str) -> timedelta:
    """Return the duration for a text such as `90d` (units `s`, `m`, `h`, `d`, `w`).

    Raise InvalidParams if the text is not a duration or means more than ten years.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        almost = _ALMOST.fullmatch(text.strip())
        near = f"{almost[1]}{almost[2][0].lower()}" if almost and almost[2][0].lower() in _UNITS else None
        guess = f" (did you mean {quoted(near)}?)" if near else ""
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
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    return min(timedelta(**{_UNITS[match[2]]: int(match[1])}), LONGEST) if len(match[1]) < 9 else LONGEST
