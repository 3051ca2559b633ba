"""The event `quota_near`: a quota is almost used up."""

from __future__ import annotations

from sqlalchemy import Connection

from skillery import events

NEAR = 0.8
"""The part of a quota whose use is reported."""


def note_if_near(
    connection: Connection, quota: str, used: int, more: int, limit: int, *, skill: str | None = None, **owner: str
) -> None:
    """Record an event if `more` brings the use of a quota to NEAR or above. `owner` has `identity` or `namespace`.

    Uses above NEAR are not reported again, until the use has fallen below NEAR. `limit` 0 means no limit.
    """
    if limit and used < NEAR * limit <= used + more:
        events.record(connection, "quota_near", skill=skill, quota=quota, used=used + more, limit=limit, **owner)
