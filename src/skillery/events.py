"""Events: what happened to versions, quotas and runs. Webhooks and the hook `events` of plugins get them.

A change calls `record` in its own transaction, so there is an event if and only if there is a change.
"""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from functools import partial
from typing import Any, get_args

import msgspec
from sqlalchemy import Connection, insert

from skillery import audit
from skillery.backends import EventType
from skillery.database import Change, before_commit
from skillery.database.tables import events

EVENT_TYPES: tuple[EventType, ...] = get_args(EventType)
BY_REQUEST: frozenset[EventType] = frozenset({"run_failed", "seal", "audit"})
"""Event types that a webhook gets only if it names them, because there are very many of these events."""
_ADD = Change(insert(events), ("id", "type", "skill", "created_at", "data_json"))


def record(connection: Connection, kind: EventType, *, skill: str | None = None, **data: Any) -> None:
    """Record an event. Call this function in the transaction of `Database.write` that makes the change.

    `skill` is the name of the skill that the event is about. `data` has no secrets. The row is written just before the
    commit, as in `audit.record`.
    """
    row = {
        "id": f"evt_{secrets.token_hex(12)}",
        "type": kind,
        "skill": skill,
        "created_at": datetime.now(UTC),
        "data_json": msgspec.json.encode(data).decode(),
    }
    before_commit(partial(_append, row=row))


def _append(connection: Connection, row: dict[str, Any]) -> None:
    # Numbers grow in the order of commits, so that a reader that remembers a number misses no event. All writers
    # already take turns for the audit trail: a second lock could deadlock with that one.
    audit.take_turn(connection)
    _ADD.run_later(connection, **row)


NEAR = 0.8
"""The part of a quota whose use is reported."""


def note_if_near(
    connection: Connection, quota: str, used: int, more: int, limit: int, *, skill: str | None = None, **owner: str
) -> None:
    """Record an event if `more` raises the use of a quota from below NEAR to NEAR or above. `owner` has `identity` or
    `namespace`.

    The next event follows only after the use has fallen below NEAR. `limit` 0 means no limit.
    """
    if limit and used < NEAR * limit <= used + more:
        record(connection, "quota_near", skill=skill, quota=quota, used=used + more, limit=limit, **owner)
