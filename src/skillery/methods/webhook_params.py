"""The params of the methods for webhooks."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from skillery.methods.params import Params, shown

Id = Annotated[str, Meta(min_length=1, max_length=64)]


class AddWebhook(Params, frozen=True, kw_only=True):
    """Send events to a URL, as signed HTTP requests. Only this answer contains the secret."""

    url: Annotated[str, shown("Target of the requests (e.g., 'https://hooks.example.org/skillery')")]
    events: Annotated[list[str], shown("Types of events; omit for all except run_failed")] = msgspec.field(
        default_factory=list
    )
    skills: Annotated[
        list[str], shown("Only events about these: skills ('sales.report') or namespaces ('sales.*'); omit for all")
    ] = msgspec.field(default_factory=list)


class ListWebhooks(Params, frozen=True, kw_only=True):
    """List all webhooks, without their secrets."""


class TestWebhook(Params, frozen=True, kw_only=True):
    """Send a message of the type test to a webhook now."""

    __test__ = False  # pytest collects classes with this prefix

    id: Annotated[Id, shown("The webhook's id")]


class RemoveWebhook(Params, frozen=True, kw_only=True):
    """Remove a webhook, its waiting events and its dead letters."""

    id: Annotated[Id, shown("The webhook's id")]


class ListDeadLetters(Params, frozen=True, kw_only=True):
    """List the events that a webhook did not accept in time, oldest first."""

    id: Annotated[Id, shown("The webhook's id")]
    limit: Annotated[int, Meta(ge=1, le=1000), shown("Maximum number of results", default=50)] = 50
    cursor: Annotated[str, shown("Pagination cursor from previous response")] = ""
