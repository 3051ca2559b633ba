"""Rebuilds of environments, requested by an admin. The present installation stays until the new one is complete."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Failure, Identity, Storage
from skillery.database import Database
from skillery.environments.definitions import Named
from skillery.environments.dependency_locks import Locks
from skillery.environments.named import NamedEnvironments, not_locked
from skillery.environments.named_rows import begin_rebuild, end_left_over, end_rebuild, replace_named_lock
from skillery.environments.queries import content_of, environment_not_found
from skillery.environments.store import Environments
from skillery.errors import SkilleryError

log = logging.getLogger(__name__)
STOPPED = "the server was stopped during the rebuild"


class Rebuilds:
    """The active rebuilds of this server."""

    def __init__(
        self,
        database: Database,
        storage: Storage,
        locks: Locks,
        environments: Environments,
        named: NamedEnvironments,
        server: str,
    ) -> None:
        self._database = database
        self._storage = storage
        self._locks = locks
        self._environments = environments
        self._named = named
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Record that the rebuilds of a killed server have failed."""
        await self._database.write(partial(end_left_over, server=self._server, now=datetime.now(UTC)))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(self, identity: Identity, subject: str) -> None:
        """Start a rebuild, unless one of this subject is running. Raise EnvironmentNotFound if the subject is unknown.

        A named environment gets a new lock for all servers, which this server installs and stores. For the SHA-256 of a
        lock, only this server installs the packages again.
        """
        one = self._named.defined.get(subject)
        content = None if one else await asyncio.to_thread(content_of, self._database, self._storage, subject)
        if one is None and content is None:
            raise environment_not_found(subject, self._named.defined)
        begin = partial(begin_rebuild, subject=subject, server=self._server, identity=identity.name)
        if not await self._database.write(partial(begin, now=datetime.now(UTC))):
            return
        work = self._rebuild_named(identity, one) if one else self._rebuild_lock(identity, subject, content or b"")
        task = asyncio.create_task(self._record_end(subject, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _record_end(self, subject: str, work: Coroutine[None, None, str]) -> None:
        """Await a rebuild. Record its failure, or that the server stopped.

        A successful rebuild records its end itself, in the transaction of its result.
        """
        message = STOPPED
        try:
            message = await work
        except SkilleryError as error:
            message = error.message
        except Exception:
            log.exception("the environment '%s' could not be rebuilt", subject)
            message = "see the log of the server"
        finally:
            if message:
                log.warning("the environment '%s' could not be rebuilt: %s", subject, message)
                ended = partial(end_rebuild, subject=subject, message=message, now=datetime.now(UTC))
                await asyncio.shield(self._database.write(ended))

    async def _rebuild_named(self, identity: Identity, one: Named) -> str:
        """Rebuild a named environment. Return the reason of its failure; "" if it succeeded."""
        before = await self._named.read(one)
        try:
            content = await self._locks.make(one.dependencies, force=True)
        except SkilleryError as error:
            return not_locked(one, error).message
        found = await self._environments.rebuild(content)
        if isinstance(found, Failure):
            return found.message

        def replace(connection: Connection) -> None:
            now, sha256 = datetime.now(UTC), hashlib.sha256(content).hexdigest()
            replace_named_lock(connection, one.name, one.key, content, sha256, now)
            end_rebuild(connection, one.name, "", now)
            was = {"lock": before.sha256} if before else None
            audit.record(connection, identity, "rebuild_environment", one.name, before=was, after={"lock": sha256})

        await self._database.write(replace)
        self._named.forget(one.name)
        return ""

    async def _rebuild_lock(self, identity: Identity, sha256: str, content: bytes) -> str:
        found = await self._environments.rebuild(content)
        if isinstance(found, Failure):
            return found.message

        def note(connection: Connection) -> None:
            end_rebuild(connection, sha256, "", datetime.now(UTC))
            audit.record(connection, identity, "rebuild_environment", sha256, after={"server": self._server})

        await self._database.write(note)
        return ""
