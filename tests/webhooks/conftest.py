"""Fixtures of the tests of webhooks: a receiver on loopback, and a webhook that leads to it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.conftest import Rpc, Server
from tests.support.processes import eventually
from tests.webhooks.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def add_webhook(receiver: Receiver) -> Iterator[Callable[..., str]]:
    """Yield `add_webhook(rpc, events=…, skills=…)`, which adds a webhook that leads to the receiver, and returns its
    id.
    """
    added: list[tuple[Rpc, str]] = []

    def add(rpc: Rpc, **params: Any) -> str:
        made = rpc("add_webhook", **{"url": receiver.url, **params})
        receiver.secret = made["secret"]
        added.append((rpc, made["id"]))
        return str(made["id"])

    yield add
    for rpc, webhook_id in added:
        with contextlib.suppress(httpx.TransportError):  # the test has stopped its server
            rpc.send("remove_webhook", {"id": webhook_id})


@pytest.fixture
def start(
    database_kind: str, start_server: Callable[..., Server], request: pytest.FixtureRequest
) -> Callable[..., Server]:
    """Return `start(home=…, env={…})`, which starts a server on the database of this test, of each kind."""
    url = request.getfixturevalue("migrated_postgres_database")() if database_kind == "postgres" else ""

    def start(env: dict[str, str] | None = None, **more: Any) -> Server:
        server = start_server(env={"SKILLERY_DATABASE": url, **(env or {})}, **more)
        server.database = url
        return server

    return start


def row_of(rpc: Rpc, webhook_id: str) -> dict[str, Any]:
    """Return the webhook as `list_webhooks` shows it."""
    rows: list[dict[str, Any]] = rpc("list_webhooks")["webhooks"]
    return next(row for row in rows if row["id"] == webhook_id)


def until(holds: Callable[[], Any]) -> None:
    """Wait for a state that the server reaches soon."""
    eventually(holds)
