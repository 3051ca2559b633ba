"""The hook `events` of plugins reads the outbox like a webhook: in order, and on one server at a time."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Events
from skillery.database import Database
from skillery.database.tables import event_readers
from skillery.errors import SkilleryError
from skillery.webhooks import queue
from skillery.webhooks.leases import claim, release

log = logging.getLogger(__name__)
READER = "plugins"
POLL_SECONDS = 0.5
_ADD = {
    dialect.__name__.rpartition(".")[2]: dialect.insert(event_readers).on_conflict_do_nothing(index_elements=["id"])
    for dialect in (sqlite, postgresql)
}


class PluginReader:
    """Passes the events after the first start to the plugins. Without a plugin that implements the hook, do nothing."""

    def __init__(self, database: Database, server: str, events: Events) -> None:
        self._database = database
        self._server = server
        self._events = events

    async def start(self) -> None:
        if self._events.has_event_hooks:
            await self._database.write(_add)

    async def run(self) -> None:
        """Read until the task is cancelled."""
        while self._events.has_event_hooks:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._read()
            except SkilleryError as error:
                log.debug("events for plugins: %s", error.message)
            except Exception:
                log.exception("events for plugins failed")

    async def _read(self) -> None:
        """Call the hook for each new event, if no other server does so now. A lost lease ends the batch."""
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
    connection.execute(_ADD[connection.dialect.name], {"id": READER, "position": queue.head_of(connection)})


def _is_behind(connection: Connection) -> bool:
    position = connection.scalar(select(event_readers.c.position).where(event_readers.c.id == READER))
    return position is not None and position < queue.head_of(connection)
