"""The methods for environments of packages. An environment without a name is identified by the SHA-256 of its lock."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Coroutine, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from skillery import audit
from skillery.backends import Failure, Identity, KeepsWarm, Sandbox, Storage, Warm
from skillery.database import Database
from skillery.environments.definitions import Named
from skillery.environments.dependency_locks import Locks
from skillery.environments.named import (
    NamedEnvironments,
    begin_rebuild,
    end_left_over,
    end_rebuild,
    lock_of,
    not_locked,
    replace_named_lock,
)
from skillery.environments.queries import (
    DescribedEnvironment,
    Environment,
    EnvironmentPage,
    EnvironmentQueries,
    WarmProcess,
    content_of,
    environment_not_found,
)
from skillery.environments.store import Environments
from skillery.errors import SkilleryError
from skillery.method import Cursor, Method, PageLimit, Params, about

# -- Rebuilds of environments, requested by an admin. The present installation stays until the new one is complete -----


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
        environment = self._named.defined.get(subject)
        content = None if environment else await asyncio.to_thread(content_of, self._database, self._storage, subject)
        if environment is None and content is None:
            raise environment_not_found(subject, self._named.defined)
        begin = partial(begin_rebuild, subject=subject, server=self._server, identity=identity.name)
        if not await self._database.write(partial(begin, now=datetime.now(UTC))):
            return
        work = (
            self._rebuild_named(identity, environment)
            if environment
            else self._rebuild_lock(identity, subject, content or b"")
        )
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

    async def _rebuild_named(self, identity: Identity, environment: Named) -> str:
        """Rebuild the parts of a named environment. Return the reason of a failure; "" if all succeeded."""
        contents = {}
        for part in environment.parts:
            try:
                contents[part.id] = await lock_of(self._locks, part, force=True)
            except SkilleryError as error:
                return not_locked(part, error).message
            outcome = await self._environments.rebuild(contents[part.id])
            if isinstance(outcome, Failure):
                return outcome.message
        before = {part.id: await self._named.read(part) for part in environment.parts}

        def replace(connection: Connection) -> None:
            now = datetime.now(UTC)
            for part in environment.parts:
                content, old = contents[part.id], before[part.id]
                sha256 = hashlib.sha256(content).hexdigest()
                replace_named_lock(connection, part.id, part.key, content, sha256, now)
                was = {"lock": old.sha256} if old else None
                audit.record(connection, identity, "rebuild_environment", part.id, before=was, after={"lock": sha256})
            end_rebuild(connection, environment.name, "", now)

        await self._database.write(replace)
        for part in environment.parts:
            self._named.forget(part.id)
        return ""

    async def _rebuild_lock(self, identity: Identity, sha256: str, content: bytes) -> str:
        outcome = await self._environments.rebuild(content)
        if isinstance(outcome, Failure):
            return outcome.message

        def note(connection: Connection) -> None:
            end_rebuild(connection, sha256, "", datetime.now(UTC))
            audit.record(connection, identity, "rebuild_environment", sha256, after={"server": self._server})

        await self._database.write(note)
        return ""


EnvironmentOrLock = Annotated[str, Meta(min_length=1, max_length=100)]
E = TypeVar("E", bound=Environment)


class EnvironmentParts(NamedTuple):
    """The parts of the core that the methods for environments use."""

    named: NamedEnvironments
    queries: EnvironmentQueries
    rebuilds: Rebuilds
    sandbox: Sandbox

    def warm(self) -> list[Warm]:
        """Return the warm processes of the sandbox."""
        return self.sandbox.warm() if isinstance(self.sandbox, KeepsWarm) else []


def _with_warm(environment: E, processes: Sequence[Warm]) -> E:
    """Return the environment with the state of its warm process, if `processes` has such a process.

    Several warm processes may have the packages of the environment. If the environment has `preload`, only a process
    that has imported exactly these modules counts.
    """
    if environment.lock is None:
        return environment
    sha256, preload = environment.lock.sha256, tuple(environment.preload)
    for warm in processes:
        if warm.lock == sha256 and warm.preload == (preload or warm.preload):
            return msgspec.structs.replace(environment, warm=WarmProcess(warm.state, warm.memory_mb, warm.message))
    return environment


# -- list_environments -------------------------------------------------------------------------------------------------


class ListEnvironments(Params, frozen=True, kw_only=True):
    """List the named environments, with the packages that the code of run_code may import."""

    installed: Annotated[bool, about("List all installed locks instead (for admins)", default=False)] = False
    limit: PageLimit = 50
    cursor: Cursor = ""


async def list_environments(
    environments: EnvironmentParts, identity: Identity, params: ListEnvironments
) -> EnvironmentPage:
    if params.installed:
        page = await environments.queries.installed(identity, params.limit, params.cursor)
    else:
        page = await environments.queries.named()
    warm = environments.warm()
    return EnvironmentPage([_with_warm(environment, warm) for environment in page.environments], page.next_cursor)


# -- describe_environment ----------------------------------------------------------------------------------------------


class DescribeEnvironment(Params, frozen=True, kw_only=True):
    """Return one environment, and the versions that use its lock of packages."""

    name: Annotated[EnvironmentOrLock, about("Name of an environment, or the SHA-256 of a lock")]


async def describe_environment(
    environments: EnvironmentParts, identity: Identity, params: DescribeEnvironment
) -> DescribedEnvironment:
    return _with_warm(await environments.queries.describe(identity, params.name), environments.warm())


# -- rebuild_environment -----------------------------------------------------------------------------------------------


class RebuildEnvironment(Params, frozen=True, kw_only=True):
    """Lock a named environment again and install the new lock. For the SHA-256 of a lock, reinstall that lock."""

    name: Annotated[EnvironmentOrLock, about("Name of an environment, or the SHA-256 of a lock")]


async def rebuild_environment(
    environments: EnvironmentParts, identity: Identity, params: RebuildEnvironment
) -> DescribedEnvironment:
    await environments.rebuilds.begin(identity, params.name)
    return _with_warm(await environments.queries.describe(identity, params.name), environments.warm())


METHODS = (
    Method(list_environments, "run", audits=""),
    Method(describe_environment, "run", audits=""),
    Method(rebuild_environment, "admin", audits="name"),
)
