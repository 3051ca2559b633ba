"""Results of the methods for webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from skillery.registry.pages import NextCursor

MOST_COUNTED = 10_000
"""Waiting events that are counted for one webhook."""
State = Literal["live", "failing", "gone"]


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


class AddedWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `add_webhook`. No other method returns `secret`."""

    id: str
    url: str
    events: tuple[str, ...]
    skills: tuple[str, ...]
    secret: Annotated[str, Meta(description="The receiver verifies signatures with it")]


class RemovedWebhook(msgspec.Struct, frozen=True):
    """Result of `remove_webhook`."""

    id: str
    url: str
    dropped: Annotated[
        int, Meta(description=f"Waiting events (at most {MOST_COUNTED} are counted) and dead letters that were lost")
    ]


class WebhookTest(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `test_webhook`."""

    id: str
    ok: bool
    status: Annotated[int | None, Meta(description="HTTP status of the answer; null if there was no answer")]
    error: Annotated[str | None, Meta(description="Why the target did not accept the event")]
    duration_ms: float


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
