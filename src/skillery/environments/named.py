"""Named environments of a server: locked once for all servers of the database, and installed by each server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Literal

from skillery.backends import Failure, FailureType
from skillery.database import Database
from skillery.environments.definitions import Defined, Named
from skillery.environments.dependency_locks import NOT_LOCKED, Locks
from skillery.environments.named_rows import NamedLock, add_named_lock, find_named_lock
from skillery.environments.store import RETRY_SECONDS, Environments
from skillery.errors import PackagesNotOffered, SkilleryError, Unavailable
from skillery.formats.requirements import Pin, read_lock

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
        self._database = database
        self._locks = locks
        self._environments = environments
        self._known: dict[str, tuple[NamedLock, float]] = {}
        self._locking: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[Failure, float]] = {}
        """Last failure to lock, by name, and the time of the next attempt."""
        self.states: dict[str, SeenState] = {one.name: "pending" for one in defined}
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

    async def lock(self, one: Named, seconds: float) -> NamedLock | Failure:
        """Return the lock of an environment. If there is none, create it.

        Return a failure if locking fails or takes longer than `seconds`. After a timeout, locking continues.
        """
        found = await self.find(one)
        if found is not None:
            return found
        task = self._begin(one)
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                return Failure(
                    FailureType.ENVIRONMENT_NOT_READY,
                    f"the environment '{one.name}' was still being locked after {seconds:g} s",
                )
        failed = self._failed.get(one.name)
        if failed is not None:
            return failed[0]
        return await self.find(one) or Failure(
            FailureType.ENVIRONMENT_FAILED, f"the environment '{one.name}' could not be locked"
        )

    async def find(self, one: Named) -> NamedLock | None:
        """Return the lock from the cache or the database."""
        known = self._known.get(one.name)
        if known is not None and time.monotonic() - known[1] < FRESH_SECONDS:
            return known[0]
        return await self.read(one)

    async def read(self, one: Named) -> NamedLock | None:
        """Return the lock from the database."""
        found = await self._database.read(partial(find_named_lock, name=one.name, key=one.key))
        if found is not None:
            self._known[one.name] = (found, time.monotonic())
        return found

    def forget(self, name: str) -> None:
        """Drop the cached lock of an environment, because a new lock replaced it."""
        self._known.pop(name, None)
        self._failed.pop(name, None)

    def is_locking(self, name: str) -> bool:
        return name in self._locking

    def failure(self, name: str) -> Failure | None:
        """Return the last failure of this server to lock the environment; None if it did not fail."""
        failed = self._failed.get(name)
        return failed[0] if failed else None

    # -- locking -----------------------------------------------------------------------------------------------------

    def _begin(self, one: Named) -> asyncio.Task[None] | None:
        """Start to lock an environment. Return None if locking failed recently, or if the server is stopping."""
        failed = self._failed.get(one.name)
        if self._closed or (failed is not None and time.monotonic() < failed[1]):
            return None
        task = self._locking.get(one.name)
        if task is None:
            task = self._locking[one.name] = asyncio.create_task(self._make(one))
            task.add_done_callback(lambda _: self._locking.pop(one.name, None))
        return task

    async def _make(self, one: Named) -> None:
        try:
            content = await self._locks.make(one.dependencies)
            sha256 = hashlib.sha256(content).hexdigest()
            add = partial(add_named_lock, name=one.name, key=one.key, content=content, sha256=sha256)
            await self._database.write(partial(add, now=datetime.now(UTC)))
            self._failed.pop(one.name, None)
        except SkilleryError as error:
            log.warning("%s", not_locked(one, error).message)
            delay = 0.0 if isinstance(error, Unavailable) else RETRY_SECONDS
            self._failed[one.name] = (not_locked(one, error), time.monotonic() + delay)
        except Exception:
            log.exception("the environment '%s' could not be locked", one.name)
            failure = Failure(
                FailureType.ENVIRONMENT_FAILED,
                f"the environment '{one.name}' could not be locked: see the log of the server",
            )
            self._failed[one.name] = (failure, time.monotonic() + RETRY_SECONDS)

    # -- in the background -------------------------------------------------------------------------------------------

    async def _maintain(self) -> None:
        not_before: dict[str, float] = {}
        while True:
            for one in self.defined:
                if time.monotonic() < not_before.get(one.name, 0.0):
                    continue
                if self.states[one.name] != "ready":
                    self.states[one.name] = "building"
                if await self._ensure_installed(one):
                    self.states[one.name] = "ready"
                else:
                    self.states[one.name] = "failed"
                    not_before[one.name] = time.monotonic() + FAILURE_SECONDS
            await asyncio.sleep(CHECK_SECONDS)

    async def _ensure_installed(self, one: Named) -> bool:
        """Install the environment if necessary. Return whether it is installed.

        The call counts as a use, because a named environment must stay installed even if no run uses it.
        """
        try:
            found = await self.lock(one, BUILD_SECONDS)
            if isinstance(found, Failure) or not pins_of(found.content):
                return not isinstance(found, Failure)
            return not isinstance(await self._environments.ready(found.content, BUILD_SECONDS), Failure)
        except SkilleryError as error:
            log.debug("the environment '%s': %s", one.name, error.message)
        except Exception:
            log.exception("the environment '%s' could not be locked or installed", one.name)
        return False


def not_locked(one: Named, error: SkilleryError) -> Failure:
    """Return the failure for an environment that cannot be locked.

    If the dependencies are at fault, the message names their setting. If the server offers no packages, the message
    has the hint of the error.
    """
    what = (
        f"the environment '{one.name}' could not be locked: {error.message.removeprefix(f'{NOT_LOCKED}: ').rstrip('.')}"
    )
    if isinstance(error, PackagesNotOffered):
        return Failure(FailureType.ENVIRONMENT_FAILED, f"{what}. {error.hint or ''}".rstrip())
    if isinstance(error, Unavailable):
        return Failure(FailureType.ENVIRONMENT_FAILED, what)
    return Failure(FailureType.ENVIRONMENT_FAILED, f"{what} (the setting environments.{one.name}.dependencies)")


@lru_cache(maxsize=128)
def pins_of(content: bytes) -> tuple[Pin, ...]:
    """Return the pins of a lock that this server created."""
    return read_lock(content)
