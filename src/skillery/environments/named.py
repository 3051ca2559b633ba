"""Named environments of a server: locked once for all servers of the database, and installed by each server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, Select, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Failure, FailureType
from skillery.database import Database, in_utc
from skillery.database.tables import environment_rebuilds, named_locks
from skillery.environments.definitions import Defined, Named
from skillery.environments.dependency_locks import NOT_LOCKED, Locks
from skillery.environments.npm import NOT_LOCKED as NPM_NOT_LOCKED
from skillery.environments.store import RETRY_SECONDS, Environments
from skillery.errors import PackagesNotOffered, SkilleryError, Unavailable
from skillery.formats.npm import is_npm_lock, read_npm_lock
from skillery.formats.requirements import Pin, read_lock

# -- Database rows of named environments and their rebuilds. All servers of a database share them ----------------------


MOST_KEPT = 10
"""The maximum number of locks of one name. Servers with another Python version, and earlier settings, have separate
locks.
"""
_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
LONGEST_REBUILD = timedelta(hours=3)
"""Duration after which an unfinished rebuild counts as lost."""


class NamedLock(NamedTuple):
    content: bytes
    sha256: str
    made_at: datetime | None


_LOCK: Select[tuple[str, str, datetime]] = select(named_locks.c.content, named_locks.c.sha256, named_locks.c.made_at)


def find_named_lock(connection: Connection, name: str, key: str) -> NamedLock | None:
    statement = _LOCK.where(named_locks.c.name == name, named_locks.c.key == key)
    row = connection.execute(statement).one_or_none()
    return None if row is None else NamedLock(row.content.encode(), row.sha256, in_utc(row.made_at))


def add_named_lock(connection: Connection, name: str, key: str, content: bytes, sha256: str, now: datetime) -> None:
    """Store a lock. If several servers store a lock at the same time, the first lock stays."""
    add = _DIALECTS[connection.dialect.name].insert(named_locks)
    new = add.values(name=name, key=key, content=content.decode(), sha256=sha256, made_at=now)
    connection.execute(new.on_conflict_do_nothing())
    _forget_oldest(connection, name)


def replace_named_lock(connection: Connection, name: str, key: str, content: bytes, sha256: str, now: datetime) -> None:
    values = {"content": content.decode(), "sha256": sha256, "made_at": now}
    add = _DIALECTS[connection.dialect.name].insert(named_locks).values(name=name, key=key, **values)
    connection.execute(add.on_conflict_do_update(index_elements=["name", "key"], set_=values))


def names_of_lock(connection: Connection, sha256s: Iterable[str]) -> dict[str, str]:
    """Return the names of named environments by the SHA-256 of their locks. Other hashes are omitted."""
    statement = select(named_locks.c.sha256, named_locks.c.name).where(named_locks.c.sha256.in_(list(sha256s)))
    return {row.sha256: row.name for row in connection.execute(statement)}


def content_of_lock(connection: Connection, sha256: str) -> bytes | None:
    statement = select(named_locks.c.content).where(named_locks.c.sha256 == sha256).limit(1)
    content: str | None = connection.scalar(statement)
    return None if content is None else content.encode()


def _forget_oldest(connection: Connection, name: str) -> None:
    of_name = select(named_locks.c.key).where(named_locks.c.name == name)
    keys = connection.scalars(of_name.order_by(named_locks.c.made_at.desc()).offset(MOST_KEPT).limit(MOST_KEPT)).all()
    if keys:
        connection.execute(delete(named_locks).where(named_locks.c.name == name, named_locks.c.key.in_(keys)))


# -- rebuilds -----------------------------------------------------------------------------------------------------


class Rebuild(NamedTuple):
    state: Literal["running", "done", "failed"]
    message: str
    by: str
    began_at: datetime | None
    ended_at: datetime | None


def begin_rebuild(connection: Connection, subject: str, server: str, identity: str, now: datetime) -> bool:
    """Record the start of a rebuild. Return False if a rebuild of the subject is running."""
    values: dict[str, Any] = {"state": "running", "message": "", "server": server, "identity": identity}
    values |= {"began_at": now, "ended_at": None}
    add = _DIALECTS[connection.dialect.name].insert(environment_rebuilds).values(subject=subject, **values)
    is_over = or_(environment_rebuilds.c.state != "running", environment_rebuilds.c.began_at < now - LONGEST_REBUILD)
    begun = add.on_conflict_do_update(index_elements=["subject"], set_=values, where=is_over)
    return connection.scalar(begun.returning(environment_rebuilds.c.subject)) is not None


def end_rebuild(connection: Connection, subject: str, message: str, now: datetime) -> None:
    """Record the end of a rebuild. `message` is the reason of its failure; "" if it succeeded."""
    ended = update(environment_rebuilds).where(environment_rebuilds.c.subject == subject)
    connection.execute(ended.values(state="failed" if message else "done", message=message, ended_at=now))


def end_left_over(connection: Connection, server: str, now: datetime) -> None:
    """Record that the unfinished rebuilds of a stopped server have failed."""
    own = (environment_rebuilds.c.server == server) & (environment_rebuilds.c.state == "running")
    values = {"state": "failed", "message": "the server was stopped during the rebuild", "ended_at": now}
    connection.execute(update(environment_rebuilds).where(own).values(**values))


def find_rebuilds(connection: Connection, subjects: Iterable[str]) -> dict[str, Rebuild]:
    table = environment_rebuilds
    statement = select(table).where(table.c.subject.in_(list(subjects)))
    return {
        row.subject: Rebuild(row.state, row.message, row.identity, in_utc(row.began_at), in_utc(row.ended_at))
        for row in connection.execute(statement)
    }


log = logging.getLogger(__name__)
FRESH_SECONDS = 1.0
"""Seconds for which a lock is cached. Another server may replace the lock in the database."""
CHECK_SECONDS = 30.0
FAILURE_SECONDS = 300.0
"""Seconds before the background task tries again after a failure. A run may try earlier."""
BUILD_SECONDS = 4 * 3600.0


SeenState = Literal["pending", "building", "ready", "failed"]


class NamedEnvironments:
    """The named environments: definitions, locks, and installation on this server."""

    def __init__(self, database: Database, locks: Locks, environments: Environments, defined: Defined) -> None:
        self.defined = defined
        self._parts = [part for environment in defined for part in environment.parts]
        self._database = database
        self._locks = locks
        self._environments = environments
        self._known: dict[str, tuple[NamedLock, float]] = {}
        self._locking: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[Failure, float]] = {}
        """Last failure to lock, by name, and the time of the next attempt."""
        self.states: dict[str, SeenState] = {part.id: "pending" for part in self._parts}
        """State of each environment at the last check of the background task."""
        self._maintenance: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Start the background task. It locks and installs missing environments, and installs locks of other
        servers.
        """
        if len(self.defined) and self._maintenance is None:
            self._maintenance = asyncio.create_task(self._maintain())

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._locking.values(), *([self._maintenance] if self._maintenance else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def lock(self, environment: Named, seconds: float) -> NamedLock | Failure:
        """Return the lock of an environment. If there is none, create it.

        Return a failure if locking fails or takes longer than `seconds`. After a timeout, locking continues.
        """
        lock = await self.find(environment)
        if lock is not None:
            return lock
        task = self._begin(environment)
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                return Failure(
                    FailureType.ENVIRONMENT_NOT_READY,
                    f"the environment '{environment.name}' was still being locked after {seconds:g} s",
                )
        failed = self._failed.get(environment.id)
        if failed is not None:
            return failed[0]
        return await self.find(environment) or Failure(
            FailureType.ENVIRONMENT_FAILED, f"the environment '{environment.name}' could not be locked"
        )

    async def find(self, environment: Named) -> NamedLock | None:
        """Return the lock from the cache or the database."""
        known = self._known.get(environment.id)
        if known is not None and time.monotonic() - known[1] < FRESH_SECONDS:
            return known[0]
        return await self.read(environment)

    async def read(self, environment: Named) -> NamedLock | None:
        """Return the lock from the database."""
        lock = await self._database.read(partial(find_named_lock, name=environment.id, key=environment.key))
        if lock is not None:
            self._known[environment.id] = (lock, time.monotonic())
        return lock

    def forget(self, name: str) -> None:
        """Drop the cached lock of an environment, because a new lock replaced it."""
        self._known.pop(name, None)
        self._failed.pop(name, None)

    def is_locking(self, name: str) -> bool:
        return name in self._locking

    def failure(self, name: str) -> Failure | None:
        """Return why this server last failed to lock the environment, or None if it has not failed."""
        failed = self._failed.get(name)
        return failed[0] if failed else None

    # -- locking -----------------------------------------------------------------------------------------------------

    def _begin(self, environment: Named) -> asyncio.Task[None] | None:
        """Start to lock an environment. Return None if locking failed recently, or if the server is stopping."""
        failed = self._failed.get(environment.id)
        if self._closed or (failed is not None and time.monotonic() < failed[1]):
            return None
        task = self._locking.get(environment.id)
        if task is None:
            task = self._locking[environment.id] = asyncio.create_task(self._make(environment))
            task.add_done_callback(lambda _: self._locking.pop(environment.id, None))
        return task

    async def _make(self, environment: Named) -> None:
        try:
            content = await lock_of(self._locks, environment)
            sha256 = hashlib.sha256(content).hexdigest()
            add = partial(add_named_lock, name=environment.id, key=environment.key, content=content, sha256=sha256)
            await self._database.write(partial(add, now=datetime.now(UTC)))
            self._failed.pop(environment.id, None)
        except SkilleryError as error:
            log.warning("%s", not_locked(environment, error).message)
            delay = 0.0 if isinstance(error, Unavailable) else RETRY_SECONDS
            self._failed[environment.id] = (not_locked(environment, error), time.monotonic() + delay)
        except Exception:
            log.exception("the environment '%s' could not be locked", environment.name)
            failure = Failure(
                FailureType.ENVIRONMENT_FAILED,
                f"the environment '{environment.name}' could not be locked: see the log of the server",
            )
            self._failed[environment.id] = (failure, time.monotonic() + RETRY_SECONDS)

    # -- in the background -------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        not_before: dict[str, float] = {}
        while True:
            for environment in self._parts:
                if time.monotonic() < not_before.get(environment.id, 0.0):
                    continue
                if self.states[environment.id] != "ready":
                    self.states[environment.id] = "building"
                if await self._ensure_installed(environment):
                    self.states[environment.id] = "ready"
                else:
                    self.states[environment.id] = "failed"
                    not_before[environment.id] = time.monotonic() + FAILURE_SECONDS
            await asyncio.sleep(CHECK_SECONDS)

    async def _ensure_installed(self, environment: Named) -> bool:
        """Install the environment if necessary. Return whether it is installed.

        The call counts as a use, because a named environment must stay installed even if no run uses it.
        """
        try:
            lock = await self.lock(environment, BUILD_SECONDS)
            if isinstance(lock, Failure) or not pins_of(lock.content):
                return not isinstance(lock, Failure)
            return not isinstance(
                await self._environments.ready(lock.content, BUILD_SECONDS, is_awaited=False), Failure
            )
        except SkilleryError as error:
            log.debug("the environment '%s': %s", environment.name, error.message)
        except Exception:
            log.exception("the environment '%s' could not be locked or installed", environment.name)
        return False


async def lock_of(locks: Locks, environment: Named, *, force: bool = False) -> bytes:
    """Return the lock of a part of a named environment. Raise the errors of `Locks.make`."""
    if environment.is_npm:
        return await locks.make_npm(environment.dependencies, force=force)
    return await locks.make(environment.dependencies, force=force)


def not_locked(environment: Named, error: SkilleryError) -> Failure:
    """Return the failure for an environment that cannot be locked.

    If the dependencies are at fault, the message names their setting. If the server offers no packages, the message
    has the hint of the error.
    """
    prefix = NPM_NOT_LOCKED if environment.is_npm else NOT_LOCKED
    reason = error.message.removeprefix(f"{prefix}: ").rstrip(".")
    key = "npm" if environment.is_npm else "dependencies"
    message = f"the environment '{environment.name}' could not be locked: {reason}"
    if isinstance(error, PackagesNotOffered):
        return Failure(FailureType.ENVIRONMENT_FAILED, f"{message}. {error.hint or ''}".rstrip())
    if isinstance(error, Unavailable):
        return Failure(FailureType.ENVIRONMENT_FAILED, message)
    return Failure(FailureType.ENVIRONMENT_FAILED, f"{message} (the setting environments.{environment.name}.{key})")


@lru_cache(maxsize=128)
def pins_of(content: bytes) -> tuple[Pin, ...]:
    """Return the pins of a lock, of Python or npm packages. Raise InvalidLock if it is not a valid one."""
    if is_npm_lock(content):
        return tuple(package.pin for package in read_npm_lock(content).packages)
    return read_lock(content)
