"""The tables of events, the webhooks that get them, and the events that no webhook accepted."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, String, Table, Text

from skillery.database.tables.base import Key, Moment, Name, metadata

events = Table(
    "events",
    metadata,
    # Grows in the order of commits. The newest row is never deleted, so that no number is used twice.
    Column("seq", Key, primary_key=True),
    Column("id", String(64), nullable=False),
    Column("type", String(32), nullable=False),
    # The skill that the event is about. None: another thing, for example a quota of an identity.
    Column("skill", Name, nullable=True),
    Column("created_at", Moment, nullable=False),
    Column("data_json", Text, nullable=False),
    comment="Outbox: events that webhooks and plugins get.",
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("url", Text, nullable=False),
    # Not hashed, because the sender signs with it.
    Column("secret", Text, nullable=False),
    Column("events_json", Text, nullable=False),
    # Names of skills, and namespaces with `.*`. Empty: all skills.
    Column("skills_json", Text, nullable=False),
    Column("created_by", String(255), nullable=False),
    Column("created_at", Moment, nullable=False),
    # `seq` of the last event that this webhook needs no more.
    Column("position", BigInteger, nullable=False),
    # Attempts to send the next event, and the time of the first failure since the last success.
    Column("attempts", Integer, nullable=False),
    Column("failing_since", Moment, nullable=True),
    Column("next_at", Moment, nullable=False),
    Column("last_error", Text, nullable=True),
    Column("delivered", BigInteger, nullable=False),
    Column("delivered_at", Moment, nullable=True),
    # Set when the target answered 410.
    Column("gone_at", Moment, nullable=True),
    # The server that sends now, and the random id of its claim.
    Column("server", String(64), nullable=True),
    Column("holder", String(32), nullable=True),
    Column("leased_until", Moment, nullable=True),
)

event_readers = Table(
    "event_readers",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("position", BigInteger, nullable=False),
    Column("server", String(64), nullable=True),
    Column("holder", String(32), nullable=True),
    Column("leased_until", Moment, nullable=True),
    comment="How far the hook `events` of the plugins has read the outbox, and the server that computes vectors.",
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("id", Key, primary_key=True),
    Column("webhook_id", String(64), ForeignKey("webhooks.id"), nullable=False),
    Column("event_id", String(64), nullable=False),
    Column("type", String(32), nullable=False),
    Column("skill", Name, nullable=True),
    Column("event_at", Moment, nullable=False),
    Column("data_json", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("died_at", Moment, nullable=False),
)
Index("ix_dead_letters_webhook", dead_letters.c.webhook_id, dead_letters.c.id)
