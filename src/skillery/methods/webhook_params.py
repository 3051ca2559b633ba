"""The params of the methods for webhooks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skillery.method import Cursor, PageLimit, Params, about

Id = Annotated[str, Meta(min_length=1, max_length=64)]


class AddWebhook(Params, frozen=True, kw_only=True):
    """Send events to a URL, as signed HTTP requests. Only this answer contains the secret."""

    url: Annotated[str, about("Target of the requests (e.g., 'https://hooks.example.org/skillery')")]
    events: Annotated[list[str], about("Types of events; omit for all except run_failed")] = msgspec.field(
        default_factory=list
    )
    skills: Annotated[
        list[str], about("Only events about these: skills ('sales.report') or namespaces ('sales.*'); omit for all")
    ] = msgspec.field(default_factory=list)


class ListWebhooks(Params, frozen=True, kw_only=True):
    """List all webhooks, without their secrets."""


class TestWebhook(Params, frozen=True, kw_only=True):
    """Send a message of the type test to a webhook now."""

    __test__ = False  # pytest collects classes with this prefix

    id: Annotated[Id, about("The webhook's id")]


class RemoveWebhook(Params, frozen=True, kw_only=True):
    """Remove a webhook, its waiting events and its dead letters."""

    id: Annotated[Id, about("The webhook's id")]


class ListDeadLetters(Params, frozen=True, kw_only=True):
    """List the events that a webhook did not accept in time, oldest first."""

    id: Annotated[Id, about("The webhook's id")]
    limit: PageLimit = 50
    cursor: Cursor = ""
