"""Dead letters: events that a webhook did not accept in time. The server does not send them again."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, select

from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.registry import Registry
from skillery.database.tables import dead_letters
from skillery.method import Cursor, Method, PageLimit, Params, about
from skillery.registry.cursors import NextCursor, fitting_items, make_cursor, read_cursor
from skillery.webhooks.targets import WebhookId, find_webhook


class ListDeadLetters(Params, frozen=True, kw_only=True):
    """List the events that a webhook did not accept in time, oldest first."""

    id: Annotated[WebhookId, about("The webhook's id")]
    limit: PageLimit = 50
    cursor: Cursor = ""


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """An event that a webhook did not accept in time."""

    event_id: str
    type: str
    at: Annotated[datetime, Meta(description="Time of the event")]
    data: dict[str, Any]
    attempts: int
    error: Annotated[str, Meta(description="Why the last attempt failed")]
    died_at: datetime


class DeadLetterPage(msgspec.Struct, frozen=True):
    """A page of the dead letters of a webhook, oldest first."""

    dead_letters: list[DeadLetter]
    next_cursor: NextCursor


async def list_dead_letters(registry: Registry, _: Identity, params: ListDeadLetters) -> DeadLetterPage:
    work = partial(
        read_dead_letters, key=registry.cursor_key, webhook_id=params.id, limit=params.limit, cursor=params.cursor
    )
    return await registry.read_page(work)


def read_dead_letters(
    connection: Connection, key: bytes, *, webhook_id: str, limit: int, cursor: str
) -> DeadLetterPage:
    """Return a page of the dead letters of a webhook, oldest first. `key` signs the cursors.

    Raise WebhookNotFound, or InvalidCursor if the cursor belongs to another listing.
    """
    row = find_webhook(connection, webhook_id)
    bound_to = ("list_dead_letters", row.id)
    after = int(read_cursor(key, bound_to, cursor, 1)[0]) if cursor else 0
    statement = select(dead_letters).where(dead_letters.c.webhook_id == row.id, dead_letters.c.id > after)
    rows = connection.execute(statement.order_by(dead_letters.c.id).limit(limit + 1)).all()
    page = fitting_items([_dead_letter(row) for row in rows[:limit]])
    next_cursor = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    return DeadLetterPage(list(page), next_cursor)


def _dead_letter(row: Any) -> DeadLetter:
    return DeadLetter(
        event_id=row.event_id,
        type=row.type,
        at=in_utc(row.event_at),
        data=msgspec.json.decode(row.data_json),
        attempts=row.attempts,
        error=row.error,
        died_at=in_utc(row.died_at),
    )


METHODS = (Method(list_dead_letters, "admin", audits=""),)
