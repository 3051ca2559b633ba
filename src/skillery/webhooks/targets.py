"""Webhooks: targets that get events as signed HTTP requests. Add, list, test and remove them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, delete, func, insert, select

from cellblock.egress.policy import Denied
from skillery import audit
from skillery.audit import Actor
from skillery.backends import Identity
from skillery.database import in_utc
from skillery.database.leases import database_now
from skillery.database.registry import Registry
from skillery.database.tables import dead_letters, events, webhooks
from skillery.errors import Conflict, InvalidParams, WebhookNotFound
from skillery.events import BY_REQUEST, EVENT_TYPES
from skillery.formats.names import parse_grantee
from skillery.formats.wording import did_you_mean, quoted
from skillery.method import Method, Params, about
from skillery.webhooks.queue import head_of, wanted
from skillery.webhooks.sending import Sender, message, new_secret, origin_of

MOST_WEBHOOKS = 100
MOST_SKILLS = 100
MOST_COUNTED = 10_000
"""At most this many waiting events are counted for one webhook."""
State = Literal["live", "failing", "gone"]
WebhookId = Annotated[str, Meta(min_length=1, max_length=64)]
_texts = msgspec.json.Decoder(tuple[str, ...])


class Webhooks(NamedTuple):
    """The parts of the server that the methods for webhooks use."""

    registry: Registry
    sender: Sender


# -- add_webhook -------------------------------------------------------------------------------------------------------


class AddWebhook(Params, frozen=True, kw_only=True):
    """Send events to a URL, as signed HTTP requests. Only this answer contains the secret."""

    url: Annotated[str, about("Target of the requests (e.g., 'https://hooks.example.org/skillery')")]
    events: Annotated[list[str], about("Types of events; omit for all except run_failed, seal and audit")] = []
    skills: Annotated[
        list[str], about("Only events about these: skills ('sales.report') or namespaces ('sales.*'); omit for all")
    ] = msgspec.field(default_factory=list)


class AddedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `add_webhook`. No other method returns `secret`."""

    id: str
    url: str
    events: tuple[str, ...]
    skills: tuple[str, ...]
    secret: Annotated[str, Meta(description="The receiver verifies signatures with it")]


async def add_webhook(webhooks: Webhooks, identity: Identity, params: AddWebhook) -> AddedWebhook:
    """Add a webhook, and return it with its secret.

    Raise InvalidParams if a param is invalid, or if the host of the URL may not be reached. Raise Conflict if there are
    too many webhooks.
    """
    kinds, patterns = parse_events(params.events), parse_skills(params.skills)
    try:
        await webhooks.sender.check(params.url)
    except Denied as error:
        raise InvalidParams(
            f"'url' cannot be a webhook: {error.reason}",
            hint="An admin of this server can list private addresses in the setting webhooks.allow_private.",
            param="url",
        ) from None
    work = partial(insert_webhook, actor=identity, url=params.url, kinds=kinds, skills=patterns)
    return await webhooks.registry.write(work)


def parse_events(words: Sequence[str]) -> tuple[str, ...]:
    """Return the event types in the order of EVENT_TYPES. Without `words`, return all types except for BY_REQUEST.

    Raise InvalidParams if a type is unknown.
    """
    for word in words:
        if word not in EVENT_TYPES:
            raise InvalidParams(
                f"there is no event {quoted(word)}{did_you_mean(word, EVENT_TYPES)}",
                hint=f"The events are {', '.join(EVENT_TYPES)}.",
                param="events",
            )
    return tuple(event for event in EVENT_TYPES if (event in words if words else event not in BY_REQUEST))


def parse_skills(patterns: Sequence[str]) -> tuple[str, ...]:
    """Return `patterns` as a tuple. Raise InvalidParams if one is neither a skill nor a namespace with `.*`."""
    if len(patterns) > MOST_SKILLS:
        raise InvalidParams(f"'skills' has {len(patterns)} names; at most {MOST_SKILLS} are allowed", param="skills")
    return tuple(parse_grantee(pattern) for pattern in patterns)


def insert_webhook(
    connection: Connection, actor: Actor, *, url: str, kinds: Sequence[str], skills: Sequence[str]
) -> AddedWebhook:
    """Insert a webhook with checked params, and return it. It gets the events after this transaction.

    The audit trail shows only the origin of the URL. Raise Conflict if there are too many webhooks.
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


# -- list_webhooks -----------------------------------------------------------------------------------------------------


class ListWebhooks(Params, frozen=True, kw_only=True):
    """List all webhooks, without their secrets."""


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook without its secret."""

    id: str
    url: str
    events: Annotated[tuple[str, ...], Meta(description="Types of the events that it gets")]
    skills: Annotated[tuple[str, ...], Meta(description="Skills and namespaces whose events it gets; empty: all")]
    state: Annotated[State, Meta(description="gone: the target answered 410 and gets no more events")]
    waiting: Annotated[int, Meta(description=f"Events that are not delivered yet. At most {MOST_COUNTED} are counted")]
    dead_letters: Annotated[int, Meta(description="Events that could not be delivered in time")]
    delivered: Annotated[int, Meta(description="Events that the target has accepted")]
    delivered_at: datetime | None
    attempts: Annotated[int, Meta(description="Failed attempts to send the next event")]
    next_at: Annotated[datetime | None, Meta(description="When the next event is sent again, after a failure")]
    last_error: Annotated[str | None, Meta(description="Why the last attempt failed; null after a success")]
    created_at: datetime
    created_by: str


class WebhookList(msgspec.Struct, frozen=True):
    """Every webhook, oldest first."""

    webhooks: list[Webhook]


async def list_webhooks(registry: Registry, _: Identity, __: ListWebhooks) -> WebhookList:
    return await registry.read_page(read_webhooks)


def read_webhooks(connection: Connection) -> WebhookList:
    """Return all webhooks, oldest first."""
    rows = connection.execute(select(webhooks).order_by(webhooks.c.created_at, webhooks.c.id)).all()
    return WebhookList([_webhook(connection, row) for row in rows])


def _webhook(connection: Connection, row: Any) -> Webhook:
    """Return a webhook as list_webhooks shows it."""
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
    """Return the state. A webhook that is not gone fails from a failed attempt until the next accepted event."""
    if row.gone_at is not None:
        return "gone"
    return "failing" if row.failing_since is not None else "live"


def _next_at(row: Any) -> datetime | None:
    """Return the time of the next attempt if the webhook fails, else None."""
    return in_utc(row.next_at) if _state(row) == "failing" else None


def _waiting(connection: Connection, row: Any) -> int:
    """Return the number of events that wait for a webhook, at most MOST_COUNTED.

    Metrics read this number every ten seconds, and a target that is down for a day can have a long backlog.
    """
    if row.gone_at is not None:
        return 0
    conditions = wanted(_texts.decode(row.events_json), _texts.decode(row.skills_json))
    counted = select(events.c.seq).where(events.c.seq > row.position, *conditions).limit(MOST_COUNTED).subquery()
    return connection.scalar(select(func.count()).select_from(counted)) or 0


class WebhookCounts(msgspec.Struct, frozen=True):
    """The figures of all webhooks, for metrics and `skillery doctor`."""

    webhooks: int = 0
    failing: int = 0
    gone: int = 0
    waiting: int = 0
    dead_letters: int = 0


def count_webhooks(connection: Connection) -> WebhookCounts:
    """Return the counts of all webhooks."""
    webhooks = read_webhooks(connection).webhooks
    return WebhookCounts(
        webhooks=len(webhooks),
        failing=sum(webhook.state == "failing" for webhook in webhooks),
        gone=sum(webhook.state == "gone" for webhook in webhooks),
        waiting=sum(webhook.waiting for webhook in webhooks),
        dead_letters=sum(webhook.dead_letters for webhook in webhooks),
    )


# -- test_webhook ------------------------------------------------------------------------------------------------------


class TestWebhook(Params, frozen=True, kw_only=True):
    """Send a message of the type test to a webhook now."""

    __test__ = False  # pytest collects classes with this prefix

    id: Annotated[WebhookId, about("The webhook's id")]


class WebhookTest(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `test_webhook`."""

    id: str
    ok: bool
    status: Annotated[int | None, Meta(description="HTTP status of the answer; null if there was no answer")]
    error: Annotated[str | None, Meta(description="Why the target did not accept the event")]
    duration_ms: float


async def test_webhook(webhooks: Webhooks, identity: Identity, params: TestWebhook) -> WebhookTest:
    """Send an event of the type `test` at once, before the waiting events. Raise WebhookNotFound."""
    row = await webhooks.registry.read(partial(find_webhook, webhook_id=params.id))
    test = message(f"evt_{secrets.token_hex(12)}", "test", datetime.now(UTC), {"by": identity.name})
    started_at = time.monotonic()
    async with webhooks.sender.connections() as client:
        sent = await webhooks.sender.send(client, row.url, row.secret, test)
    duration_ms = round((time.monotonic() - started_at) * 1000, 1)
    return WebhookTest(id=row.id, ok=sent.error is None, status=sent.status, error=sent.error, duration_ms=duration_ms)


def find_webhook(connection: Connection, webhook_id: str) -> Any:
    """Return the row of a webhook. Raise WebhookNotFound if it does not exist."""
    row = connection.execute(select(webhooks).where(webhooks.c.id == webhook_id.replace("\0", ""))).one_or_none()
    if row is None:
        raise WebhookNotFound(f"there is no webhook {quoted(webhook_id[:80])}", hint="list_webhooks shows all of them.")
    return row


# -- remove_webhook ----------------------------------------------------------------------------------------------------


class RemoveWebhook(Params, frozen=True, kw_only=True):
    """Remove a webhook, its waiting events and its dead letters."""

    id: Annotated[WebhookId, about("The webhook's id")]


class RemovedWebhook(msgspec.Struct, frozen=True):
    """Result of `remove_webhook`."""

    id: str
    url: str
    dropped: Annotated[
        int, Meta(description=f"Waiting events (at most {MOST_COUNTED} are counted) and dead letters that were lost")
    ]


async def remove_webhook(registry: Registry, identity: Identity, params: RemoveWebhook) -> RemovedWebhook:
    return await registry.write(partial(delete_webhook, actor=identity, webhook_id=params.id))


def delete_webhook(connection: Connection, actor: Actor, webhook_id: str) -> RemovedWebhook:
    """Remove a webhook with its dead letters. Raise WebhookNotFound if it does not exist."""
    row = find_webhook(connection, webhook_id)
    dropped = _waiting(connection, row)
    dropped += connection.execute(delete(dead_letters).where(dead_letters.c.webhook_id == row.id)).rowcount
    connection.execute(delete(webhooks).where(webhooks.c.id == row.id))
    audit.record(connection, actor, "remove_webhook", row.id, before={"url": origin_of(row.url)})
    return RemovedWebhook(row.id, row.url, dropped)


METHODS = (
    Method(add_webhook, "admin", audits="url"),
    Method(list_webhooks, "admin", audits=""),
    Method(test_webhook, "admin", audits=""),
    Method(remove_webhook, "admin", audits="id"),
)
