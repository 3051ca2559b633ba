"""The webhooks of a database: add, list and remove them, and read their dead letters."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, delete, func, insert, select

from skillery import audit
from skillery.audit import Actor
from skillery.database import in_utc
from skillery.database.tables import dead_letters, events, webhooks
from skillery.errors import Conflict, InvalidParams, WebhookNotFound
from skillery.events import BY_REQUEST, EVENT_TYPES
from skillery.formats.secret_names import parse_grantee
from skillery.formats.wording import did_you_mean, quoted
from skillery.registry.cursors import make_cursor, read_cursor
from skillery.registry.pages import fitting_items
from skillery.webhooks.leases import database_now
from skillery.webhooks.queue import head_of, wanted
from skillery.webhooks.results import (
    MOST_COUNTED,
    AddedWebhook,
    DeadLetter,
    DeadLetterPage,
    RemovedWebhook,
    State,
    Webhook,
    WebhookList,
)
from skillery.webhooks.signatures import new_secret
from skillery.webhooks.urls import origin_of

MOST_WEBHOOKS = 100
MOST_SKILLS = 100
_texts = msgspec.json.Decoder(tuple[str, ...])


def parse_events(words: Sequence[str]) -> tuple[str, ...]:
    """Return the event types in their usual order. Without words, return all types that need not be named.

    Raise InvalidParams if a type is unknown.
    """
    for word in words:
        if word not in EVENT_TYPES:
            raise InvalidParams(
                f"there is no event {quoted(word)}{did_you_mean(word, EVENT_TYPES)}",
                hint=f"The events are {', '.join(EVENT_TYPES)}.",
                param="events",
            )
    return tuple(one for one in EVENT_TYPES if (one in words if words else one not in BY_REQUEST))


def parse_skills(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns unchanged. Raise InvalidParams if one is neither a skill nor a namespace with `.*`."""
    if len(patterns) > MOST_SKILLS:
        raise InvalidParams(f"'skills' has {len(patterns)} names; at most {MOST_SKILLS} are allowed", param="skills")
    return tuple(parse_grantee(pattern) for pattern in patterns)


def add_webhook(
    connection: Connection, actor: Actor, *, url: str, kinds: Sequence[str], skills: Sequence[str]
) -> AddedWebhook:
    """Add a webhook, which gets the events after this transaction. The caller has checked the params. The audit trail
    gets only the origin of the URL.

    Raise Conflict if there are too many webhooks.
    """
    count = connection.scalar(select(func.count()).select_from(webhooks)) or 0
    if count >= MOST_WEBHOOKS:
        raise Conflict(f"there are {count} webhooks, which is the limit", hint="Remove one: remove_webhook.")
    now = database_now(connection)
    webhook_id, secret = f"whk_{secrets.token_hex(12)}", new_secret()
    connection.execute(
        insert(webhooks).values(
            id=webhook_id,
            url=url,
            secret=secret,
            events_json=msgspec.json.encode(kinds).decode(),
            skills_json=msgspec.json.encode(skills).decode(),
            created_by=actor.name,
            created_at=now,
            position=head_of(connection),
            attempts=0,
            next_at=now,
            delivered=0,
        )
    )
    after = {"url": origin_of(url), "events": kinds, "skills": skills}
    audit.record(connection, actor, "add_webhook", webhook_id, after=after)
    return AddedWebhook(id=webhook_id, url=url, events=tuple(kinds), skills=tuple(skills), secret=secret)


def list_webhooks(connection: Connection) -> WebhookList:
    rows = connection.execute(select(webhooks).order_by(webhooks.c.created_at, webhooks.c.id)).all()
    return WebhookList([_webhook(connection, row) for row in rows])


def find_webhook(connection: Connection, webhook_id: str) -> Any:
    """Return the row of a webhook. Raise WebhookNotFound if it does not exist."""
    row = connection.execute(select(webhooks).where(webhooks.c.id == webhook_id.replace("\0", ""))).one_or_none()
    if row is None:
        raise WebhookNotFound(f"there is no webhook {quoted(webhook_id[:80])}", hint="list_webhooks shows all of them.")
    return row


def remove_webhook(connection: Connection, actor: Actor, webhook_id: str) -> RemovedWebhook:
    """Remove a webhook with its dead letters. Raise WebhookNotFound if it does not exist."""
    row = find_webhook(connection, webhook_id)
    dropped = _waiting(connection, row)
    dropped += connection.execute(delete(dead_letters).where(dead_letters.c.webhook_id == row.id)).rowcount
    connection.execute(delete(webhooks).where(webhooks.c.id == row.id))
    audit.record(connection, actor, "remove_webhook", row.id, before={"url": origin_of(row.url)})
    return RemovedWebhook(row.id, row.url, dropped)


def list_dead_letters(
    connection: Connection, key: bytes, *, webhook_id: str, limit: int, cursor: str
) -> DeadLetterPage:
    """Return a page of the dead letters of a webhook. Raise WebhookNotFound, and InvalidCursor for a foreign cursor."""
    row = find_webhook(connection, webhook_id)
    bound_to = ("list_dead_letters", row.id)
    after = int(read_cursor(key, bound_to, cursor, 1)[0]) if cursor else 0
    found = select(dead_letters).where(dead_letters.c.webhook_id == row.id, dead_letters.c.id > after)
    rows = connection.execute(found.order_by(dead_letters.c.id).limit(limit + 1)).all()
    page = fitting_items([_dead_letter(one) for one in rows[:limit]])
    more = make_cursor(key, bound_to, (str(rows[len(page) - 1].id),)) if len(rows) > len(page) else None
    return DeadLetterPage(list(page), more)


class WebhookCounts(msgspec.Struct, frozen=True):
    """The figures of all webhooks, for metrics and `skillery doctor`."""

    webhooks: int = 0
    failing: int = 0
    gone: int = 0
    waiting: int = 0
    dead_letters: int = 0


def count_webhooks(connection: Connection) -> WebhookCounts:
    found = list_webhooks(connection).webhooks
    return WebhookCounts(
        webhooks=len(found),
        failing=sum(one.state == "failing" for one in found),
        gone=sum(one.state == "gone" for one in found),
        waiting=sum(one.waiting for one in found),
        dead_letters=sum(one.dead_letters for one in found),
    )


def _webhook(connection: Connection, row: Any) -> Webhook:
    dead = select(func.count()).where(dead_letters.c.webhook_id == row.id)
    return Webhook(
        id=row.id,
        url=row.url,
        events=_texts.decode(row.events_json),
        skills=_texts.decode(row.skills_json),
        state=_state(row),
        waiting=_waiting(connection, row),
        dead_letters=connection.scalar(dead) or 0,
        delivered=row.delivered,
        delivered_at=in_utc(row.delivered_at),
        attempts=row.attempts,
        next_at=_next_at(row),
        last_error=row.last_error,
        created_at=in_utc(row.created_at),
        created_by=row.created_by,
    )


def _state(row: Any) -> State:
    if row.gone_at is not None:
        return "gone"
    return "failing" if row.failing_since is not None else "live"


def _next_at(row: Any) -> datetime | None:
    return in_utc(row.next_at) if _state(row) == "failing" else None


def _waiting(connection: Connection, row: Any) -> int:
    """Return the number of events that wait for a webhook, at most MOST_COUNTED. The metrics ask for it every ten
    seconds, and a target that is down for a day can have a long backlog.
    """
    if row.gone_at is not None:
        return 0
    conditions = wanted(_texts.decode(row.events_json), _texts.decode(row.skills_json))
    counted = select(events.c.seq).where(events.c.seq > row.position, *conditions).limit(MOST_COUNTED).subquery()
    return connection.scalar(select(func.count()).select_from(counted)) or 0


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
