"""The sender of a server: it delivers the events of the outbox to webhooks, and to the hook `events` of plugins."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Any

import httpx
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Events
from skillery.database import Database
from skillery.database.leases import Lease, claim, release, release_own
from skillery.database.tables import event_readers, webhooks
from skillery.errors import SkilleryError, WebhookNotFound
from skillery.settings.groups import Webhooks
from skillery.webhooks import queue
from skillery.webhooks.queue import Queued
from skillery.webhooks.sending import Sender, Sent
from skillery.webhooks.targets import WebhookCounts, count_webhooks, find_webhook

# -- The hook `events` of plugins reads the outbox like a webhook: in order, and on one server at a time ---------------


log = logging.getLogger(__name__)
READER = "plugins"
"""The id of the row in `event_readers` with the position of the plugins."""
POLL_SECONDS = 0.5
"""Seconds between two reads of the outbox."""
_ADD = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(event_readers).on_conflict_do_nothing(index_elements=["id"])
    for dialect in (sqlite, postgresql)
}


class PluginReader:
    """Passes events to the plugins, from the first start with such a plugin on.

    Without a plugin that implements the hook `events`, the reader does nothing.
    """

    def __init__(self, database: Database, server: str, events: Events) -> None:
        self._database = database
        self._server = server
        self._events = events

    async def start(self) -> None:
        """Add the position of the plugins, if it does not exist."""
        if self._events.has_event_hooks:
            await self._database.write(_add)

    async def run(self) -> None:
        """Pass new events to the plugins until the task is cancelled."""
        while self._events.has_event_hooks:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._read()
            except SkilleryError as error:
                log.debug("events for plugins: %s", error.message)
            except Exception:  # the task of the server goes on: the events stay in the outbox
                log.exception("events for plugins failed")

    async def _read(self) -> None:
        """Call the hook for each new event, unless another server does so now. Stop if the lease is lost."""
        if not await self._database.read(_is_behind):
            return
        lease = await self._database.write(partial(claim, table=event_readers, row_id=READER, server=self._server))
        if lease is None:
            return
        try:
            batch = await self._database.read(partial(queue.next_events, lease=lease))
            for queued in batch.events:
                await self._events.events(queued.event)
                if not await self._database.write(partial(queue.move, lease=lease, position=queued.seq)):
                    return  # the hook took longer than the lease, and another server has continued
        finally:
            await asyncio.shield(self._database.write(partial(release, lease=lease)))


def _add(connection: Connection) -> None:
    """Insert the position of the plugins, at the newest event, if it does not exist."""
    connection.execute(_ADD[connection.dialect.name], {"id": READER, "position": queue.head_of(connection)})


def _is_behind(connection: Connection) -> bool:
    """Return whether there are events after the position of the plugins."""
    position = connection.scalar(select(event_readers.c.position).where(event_readers.c.id == READER))
    return position is not None and position < queue.head_of(connection)


AT_ONCE = 16
"""The maximum number of webhooks that this server serves at the same time."""
TURN_SECONDS = 5.0
"""Seconds after which a webhook makes room for another one, if AT_ONCE webhooks are served."""
FIGURES_SECONDS = 10.0
"""Seconds between two updates of `Deliveries.figures`."""
LAST_ATTEMPT_SECONDS = 1.0
"""Seconds that a stopping server gives to the attempts that have begun."""
FORGET_BATCH = 500
"""The maximum number of events that one transaction deletes."""


class Deliveries:
    """Serves each webhook in a separate task, so that a slow target does not delay other targets."""

    def __init__(self, database: Database, server: str, sender: Sender, rules: Webhooks, events: Events) -> None:
        self._database = database
        self._server = server
        self._sender = sender
        self._rules = rules
        self._plugins = PluginReader(database, server, events)
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.figures = WebhookCounts()
        """The counts of all webhooks, updated every FIGURES_SECONDS."""
        self.attempts: Counter[str] = Counter()
        """The attempts of this server, by outcome: delivered or failed."""

    async def start(self) -> None:
        await self._database.write(partial(release_own, tables=(webhooks, event_readers), server=self._server))
        await self._plugins.start()
        self._tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._plugins.run())]

    async def close(self) -> None:
        """Stop serving. Attempts that do not end in LAST_ATTEMPT_SECONDS are cancelled, and the next sender repeats
        them.
        """
        self._stopping = True
        await _end(self._tasks)
        serving = set(self._serving.values())
        if serving:
            _, serving = await asyncio.wait(serving, timeout=LAST_ATTEMPT_SECONDS)
        await _end(serving)

    async def _run(self) -> None:
        """Serve due webhooks every POLL_SECONDS, and tidy up every FIGURES_SECONDS."""
        last_figures = float("-inf")
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._begin_due()
                if loop.time() - last_figures >= FIGURES_SECONDS:
                    last_figures = loop.time()
                    await self._tidy()
            except SkilleryError as error:
                log.debug("webhooks: %s", error.message)
            except Exception:
                log.exception("webhooks failed")

    async def _begin_due(self) -> None:
        """Start a task for each webhook with waiting events that no server serves, while fewer than AT_ONCE are
        served.
        """
        for webhook_id in await self._database.read(queue.due_webhooks):
            if webhook_id not in self._serving and len(self._serving) < AT_ONCE:
                task = asyncio.create_task(self._serve(webhook_id))
                self._serving[webhook_id] = task
                task.add_done_callback(partial(self._served, webhook_id))

    def _served(self, webhook_id: str, _: asyncio.Task[None]) -> None:
        del self._serving[webhook_id]

    async def _tidy(self) -> None:
        """Update the figures, and delete old events."""
        self.figures = await asyncio.to_thread(self._database.read_now, count_webhooks)
        await self._database.write(partial(queue.forget_events, limit=FORGET_BATCH))

    async def _serve(self, webhook_id: str) -> None:
        """Send the waiting events of a webhook in order, until an attempt fails, no event waits, or the turn ends."""
        try:
            lease = await self._database.write(partial(claim, table=webhooks, row_id=webhook_id, server=self._server))
            if lease is None:
                return
            try:
                async with self._sender.connections() as client:
                    await self._drain(client, lease)
            finally:
                await asyncio.shield(self._database.write(partial(release, lease=lease)))
        except WebhookNotFound:
            return  # removed a moment ago
        except SkilleryError as error:
            log.debug("webhook %s: %s", webhook_id, error.message)
        except Exception:
            log.exception("webhook %s failed", webhook_id)

    async def _drain(self, client: httpx.AsyncClient, lease: Lease) -> None:
        """Send the events under a lease, like `_serve`."""
        started_at = asyncio.get_running_loop().time()
        while True:
            row = await self._database.read(partial(find_webhook, webhook_id=lease.id))
            batch = await self._database.read(partial(queue.next_events, lease=lease))
            if not batch.events:
                await self._database.write(partial(queue.move, lease=lease, position=batch.head))
                return
            for queued in batch.events:
                if not await self._deliver(client, lease, row, queued) or self._has_had_its_turn(started_at):
                    return

    def _has_had_its_turn(self, started_at: float) -> bool:
        """Return whether the webhook stops for now: for another webhook, or because the server stops."""
        if self._stopping:
            return True
        return len(self._serving) >= AT_ONCE and asyncio.get_running_loop().time() - started_at >= TURN_SECONDS

    async def _deliver(self, client: httpx.AsyncClient, lease: Lease, row: Any, queued: Queued) -> bool:
        """Send one event and record the result. Return whether to send the next event."""
        sent = await self._sender.send(client, row.url, row.secret, self._sender.message_of(queued.event))
        self.attempts["failed" if sent.error else "delivered"] += 1
        if sent.error is None:
            return await self._database.write(partial(queue.note_delivered, lease=lease, seq=queued.seq))
        await self._note_failure(lease, queued, sent, sent.error)
        return False

    async def _note_failure(self, lease: Lease, queued: Queued, sent: Sent, error: str) -> None:
        """Record the failed attempt. If the target is gone, it gets no more events."""
        log.warning("webhook %s: the event %s was not delivered: %s", lease.id, queued.event.id, error)
        if sent.is_gone:
            await self._database.write(partial(queue.note_gone, lease=lease, error=error))
            return
        work = partial(queue.note_failed, lease=lease, queued=queued, error=error, rules=self._rules)
        await self._database.write(work)


async def _end(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel the tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
