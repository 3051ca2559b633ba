"""Named environments of one server: each is locked once for all servers of the database, and installed here."""

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
from skillery.environments.locks import NOT_LOCKED, Locks
from skillery.environments.named_rows import NamedLock, add_named_lock, find_named_lock
from skillery.environments.store import AGAIN_SECONDS, Environments
from skillery.errors import PackagesNotOffered, SkilleryError, Unavailable
from skillery.formats.requirements import Pin, read_lock

log = logging.getLogger(__name__)
FRESH_SECONDS = 1.0
"""So long this server goes by a lock that it has read: another may have replaced it."""
LOOK_SECONDS = 30.0
TRY_SECONDS = 300.0
"""After which a server of its own accord tries again what has failed; a run that needs it may try sooner."""
BUILD_SECONDS = 4 * 3600.0


SeenState = Literal["pending", "building", "ready", "failed"]


class NamedEnvironments:
    """The definitions, their locks, and what it takes to have them."""

    def __init__(self, database: Database, locks: Locks, environments: Environments, defined: Defined) -> None:
        self.defined = defined
        self._database = database
        self._locks = locks
        self._environments = environments
        self._known: dict[str, tuple[NamedLock, float]] = {}
        self._locking: dict[str, asyncio.Task[None]] = {}
        self._failed: dict[str, tuple[Failure, float]] = {}
        """Name -> why it could not be locked, and until when that is not tried again."""
        self.states: dict[str, SeenState] = {one.name: "pending" for one in defined}
        """As this server saw each when it last looked after it."""
        self._keeping_up: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """In the background, lock and install what is missing, now and whenever another server has replaced a lock."""
        if len(self.defined) and self._keeping_up is None:
            self._keeping_up = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        self._closed = True
        tasks = [*self._locking.values(), *([self._keeping_up] if self._keeping_up else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def lock(self, one: Named, seconds: float) -> NamedLock | Failure:
        """Its lock, made where there is none yet; a failure where that fails, or takes longer: then it goes on."""
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
        """The lock that it has, or had a moment ago."""
        known = self._known.get(one.name)
        if known is not None and time.monotonic() - known[1] < FRESH_SECONDS:
            return known[0]
        return await self.read(one)

    async def read(self, one: Named) -> NamedLock | None:
        """The lock that it has now."""
        found = await self._database.read(partial(find_named_lock, name=one.name, key=one.key))
        if found is not None:
            self._known[one.name] = (found, time.monotonic())
        return found

    def forget(self, name: str) -> None:
        """It has another lock."""
        self._known.pop(name, None)
        self._failed.pop(name, None)

    def is_locking(self, name: str) -> bool:
        return name in self._locking

    def failure(self, name: str) -> Failure | None:
        """Why this server could not lock it, the last time."""
        failed = self._failed.get(name)
        return failed[0] if failed else None

    # -- locking -----------------------------------------------------------------------------------------------------

    def _begin(self, one: Named) -> asyncio.Task[None] | None:
        """None where it has just failed."""
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
            again = 0.0 if isinstance(error, Unavailable) else AGAIN_SECONDS
            self._failed[one.name] = (not_locked(one, error), time.monotonic() + again)
        except Exception:
            log.exception("the environment '%s' could not be locked", one.name)
            failure = Failure(
                FailureType.ENVIRONMENT_FAILED,
                f"the environment '{one.name}' could not be locked: the server's log says why",
            )
            self._failed[one.name] = (failure, time.monotonic() + AGAIN_SECONDS)

    # -- in the background -------------------------------------------------------------------------------------------

    async def _keep_up(self) -> None:
        not_before: dict[str, float] = {}
        while True:
            for one in self.defined:
                if time.monotonic() < not_before.get(one.name, 0.0):
                    continue
                if self.states[one.name] != "ready":
                    self.states[one.name] = "building"
                if await self._see_to(one):
                    self.states[one.name] = "ready"
                else:
                    self.states[one.name] = "failed"
                    not_before[one.name] = time.monotonic() + TRY_SECONDS
            await asyncio.sleep(LOOK_SECONDS)

    async def _see_to(self, one: Named) -> bool:
        """Whether it is there. What is there counts as used: it is wanted, whether or not anybody runs code now."""
        try:
            found = await self.lock(one, BUILD_SECONDS)
            if isinstance(found, Failure) or not pins_of(found.content):
                return not isinstance(found, Failure)
            return not isinstance(await self._environments.ready(found.content, BUILD_SECONDS), Failure)
        except SkilleryError as error:
            log.debug("the environment '%s': %s", one.name, error.message)
        except Exception:
            log.exception("the environment '%s' could not be seen to", one.name)
        return False


def not_locked(one: Named, error: SkilleryError) -> Failure:
    """What is wrong with its dependencies is mended in the setting; what is wrong elsewhere, where the hint says."""
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
    """Of a lock that we have made."""
    return read_lock(content)
