"""The queue of a webhook: the events of the outbox after its position that match its filters."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, insert, or_, select

from skillery.backends import Event
from skillery.database import Statement, as_stored, in_utc
from skillery.database.leases import Lease, database_now, is_free, renew
from skillery.database.tables import dead_letters, event_readers, events, webhooks
from skillery.settings.groups import Webhooks

BATCH = 50
"""The maximum number of events that a reader gets at once."""
BURY_BATCH = 500
"""The maximum number of further events that become dead letters with the event of a failed attempt."""
MOST_DEAD_LETTERS = 10_000
"""The maximum number of dead letters of a webhook. The oldest ones are deleted."""
PART_OF_OUTAGE = 4
"""A pause is the time since the first failure, divided by this number."""
KEEP = timedelta(hours=1)
"""The age after which an event is deleted, if all readers have got it."""
KEEP_UNREAD = timedelta(days=7)
"""The age after which an event is deleted, even if the plugins have not got it."""
_texts = msgspec.json.Decoder(tuple[str, ...])


class Queued(NamedTuple):
    """An event of the outbox, with its number and its skill."""

    seq: int
    event: Event
    skill: str | None


class Batch(NamedTuple):
    """The next events of a reader. If there are no events, `head` is the position to which the reader moves."""

    events: list[Queued]
    head: int


def head_of(connection: Connection) -> int:
    """Return the number of the newest event in the outbox, or 0."""
    return int(connection.scalar(select(func.max(events.c.seq))) or 0)


_DUE = Statement(
    select(webhooks.c.id)
    .where(
        webhooks.c.position < select(func.max(events.c.seq)).scalar_subquery(),
        webhooks.c.next_at <= bindparam("now"),
        webhooks.c.gone_at.is_(None),
        is_free(webhooks, bindparam("now")),
    )
    .order_by(webhooks.c.next_at)
)


def due_webhooks(connection: Connection) -> list[str]:
    """Return the ids of the webhooks that this server may serve now. The webhook that has waited longest is first."""
    rows = _DUE.rows(connection, now=as_stored(connection, database_now(connection)))
    return [webhook_id for (webhook_id,) in rows]


def wanted(kinds: Sequence[str], skills: Sequence[str]) -> list[ColumnElement[bool]]:
    """Return the SQL conditions for events of the types `kinds` about `skills`. Without skills, all events match."""
    conditions: list[ColumnElement[bool]] = [events.c.type.in_(kinds)]
    if skills:
        conditions.append(or_(*map(_covers, skills)))
    return conditions


def _covers(pattern: str) -> ColumnElement[bool]:
    """Return the SQL condition for events about the skill or the namespace `pattern`."""
    if not pattern.endswith(".*"):
        return events.c.skill == pattern
    # "/" follows "." in the order of bytes.
    return and_(events.c.skill >= pattern[:-1], events.c.skill < f"{pattern[:-2]}/")


def next_events(connection: Connection, lease: Lease) -> Batch:
    """Return the oldest events after the position of the holder of `lease`, at most BATCH."""
    # The newest number is read first: an event with a smaller number is never committed later.
    head, table = head_of(connection), lease.table
    row = connection.execute(select(table).where(table.c.id == lease.id)).one_or_none()
    if row is None:
        return Batch([], head)
    # Entries of the audit trail are for webhooks that name their type: no plugin gets them by chance.
    conditions = [events.c.type != "audit"] if table is event_readers else _wanted_by(row)
    return Batch(_after(connection, row.position, head, conditions, BATCH), head)


def _wanted_by(webhook: Any) -> list[ColumnElement[bool]]:
    return wanted(_texts.decode(webhook.events_json), _texts.decode(webhook.skills_json))


def _after(
    connection: Connection, position: int, head: int, conditions: list[ColumnElement[bool]], limit: int
) -> list[Queued]:
    """Return the oldest events after `position`, up to the number `head`, that match the conditions."""
    after = select(events).where(events.c.seq > position, events.c.seq <= head, *conditions)
    return [_queued(row) for row in connection.execute(after.order_by(events.c.seq).limit(limit))]


def _queued(row: Any) -> Queued:
    data = msgspec.json.decode(row.data_json)
    return Queued(row.seq, Event(row.id, row.type, in_utc(row.created_at), data), row.skill)


def move(connection: Connection, lease: Lease, position: int) -> bool:
    """Move the position of a reader without a delivery. Return False if the lease is lost."""
    # Webhooks that have waited for longer come first (`due_webhooks`).
    turn = {"next_at": database_now(connection)} if lease.table is webhooks else {}
    return renew(connection, lease, position=position, **turn)


def note_delivered(connection: Connection, lease: Lease, seq: int) -> bool:
    """Record that the target accepted the event `seq`. Return False if the lease is lost."""
    now = database_now(connection)
    return renew(
        connection,
        lease,
        position=seq,
        next_at=now,
        attempts=0,
        failing_since=None,
        last_error=None,
        delivered=webhooks.c.delivered + 1,
        delivered_at=now,
    )


def note_gone(connection: Connection, lease: Lease, error: str) -> bool:
    """Record that the target wants no more events. Return False if the lease is lost."""
    return renew(connection, lease, gone_at=database_now(connection), last_error=error)


def note_failed(connection: Connection, lease: Lease, queued: Queued, error: str, rules: Webhooks) -> bool:
    """Record a failed attempt: the event is sent again after a pause, or becomes a dead letter.

    An event becomes a dead letter if it has waited for `rules.give_up_hours` while its target failed. The next events
    that have waited as long become dead letters too, at most BURY_BATCH, without an attempt. Return False if the lease
    is lost.
    """
    now, give_up = database_now(connection), timedelta(hours=rules.give_up_hours)
    row = connection.execute(select(webhooks).where(webhooks.c.id == lease.id)).one_or_none()
    if row is None:
        return False
    attempts, since = row.attempts + 1, in_utc(row.failing_since) or now
    values: dict[str, Any] = {"failing_since": since, "last_error": error, "attempts": attempts}
    values["next_at"] = now + _pause(now - since, rules)
    dead: list[Queued] = []
    if now - max(since, queued.event.at) >= give_up:
        dead = [queued, *_dead_after(connection, row, queued.seq, now - give_up, since)]
        values |= {"position": dead[-1].seq, "attempts": 0, "next_at": now + timedelta(seconds=rules.retry_seconds)}
    is_held = renew(connection, lease, **values)
    if is_held and dead:
        _bury(connection, lease.id, dead, attempts, error, now)
    return is_held


def _dead_after(
    connection: Connection, webhook: Any, position: int, given_up_before: datetime, since: datetime
) -> list[Queued]:
    """Return the events after `position` that become dead letters without an attempt.

    These are events before `given_up_before`, if the target has failed since before that time. `since` is its first
    failure.
    """
    if since >= given_up_before:
        return []
    waiting = _after(connection, position, head_of(connection), _wanted_by(webhook), BURY_BATCH)
    return list(takewhile(lambda queued: queued.event.at < given_up_before, waiting))


def _pause(failing_for: timedelta, rules: Webhooks) -> timedelta:
    """Return the pause after a failed attempt: a part of the time for which the target has been failing.

    So the pauses grow, and after an outage of any length, its events wait for at most this part of it.
    """
    growing = min(failing_for / PART_OF_OUTAGE, timedelta(seconds=rules.retry_max_seconds))
    # Random, so that several webhooks with one host are not all sent to it at the same moment.
    return max(growing, timedelta(seconds=rules.retry_seconds)) * random.uniform(0.8, 1.0)


def _bury(
    connection: Connection, webhook_id: str, dead: Sequence[Queued], attempts: int, error: str, now: datetime
) -> None:
    """Store dead letters, and delete the oldest ones over MOST_DEAD_LETTERS. Only the first event was sent, `attempts`
    times.
    """
    rows = [
        {
            "webhook_id": webhook_id,
            "event_id": event.id,
            "type": event.type,
            "skill": skill,
            "event_at": event.at,
            "data_json": msgspec.json.encode(event.data).decode(),
            "attempts": attempts if seq == dead[0].seq else 0,
            "error": error,
            "died_at": now,
        }
        for seq, event, skill in dead
    ]
    connection.execute(insert(dead_letters), rows)
    of_webhook = dead_letters.c.webhook_id == webhook_id
    newest_first = select(dead_letters.c.id).where(of_webhook).order_by(dead_letters.c.id.desc())
    newest_over_limit = connection.scalar(newest_first.offset(MOST_DEAD_LETTERS).limit(1))
    if newest_over_limit is not None:
        connection.execute(delete(dead_letters).where(of_webhook, dead_letters.c.id <= newest_over_limit))


def forget_events(connection: Connection, limit: int) -> int:
    """Delete old events that no webhook needs, at most `limit`. Return the number of deleted events.

    The newest event stays, because its number is the start of new webhooks.
    """
    now, columns = database_now(connection), events.c
    sent_to_all = connection.scalar(select(func.min(webhooks.c.position)).where(webhooks.c.gone_at.is_(None)))
    read_by_all = connection.scalar(select(func.min(event_readers.c.position)))
    newest = head_of(connection)
    old_events = select(columns.seq).where(
        columns.seq < newest, columns.seq <= _or(sent_to_all, newest), columns.created_at < now - KEEP
    )
    # The position of plugins does not move after their removal.
    old_events = old_events.where(or_(columns.seq <= _or(read_by_all, newest), columns.created_at < now - KEEP_UNREAD))
    seqs = list(connection.scalars(old_events.order_by(columns.seq).limit(limit)))
    connection.execute(events.delete().where(columns.seq.in_(seqs)))
    return len(seqs)


def _or(position: int | None, otherwise: int) -> int:
    """Return `position`, or `otherwise` if it is None."""
    return otherwise if position is None else position
