"""The environments of one server: one for each lock, built when it is first needed and shared from then on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from skillery.backends import Failure, PackageMount
from skillery.database import Database
from skillery.environments.building import PACKAGES, Builder, BuildFailed
from skillery.environments.rows import State, forget_state, forget_unfinished, needed_of, note_state
from skillery.errors import SkilleryError

log = logging.getLogger(__name__)
AGAIN_SECONDS = 60.0
"""A build that has failed is not tried again sooner, unless the reason was passing."""
NOTED_EVERY = 600.0
NOT_READY, FAILED = "EnvironmentNotReady", "EnvironmentFailed"


class Installed(NamedTuple):
    lock: str
    used_at: datetime


class Environments:
    """A folder for each lock, named by its SHA-256 and by the interpreter that it is for; what has a name is whole."""

    def __init__(self, folder: Path, database: Database, builder: Builder, server: str) -> None:
        self._folder = folder / "ready"
        self._away = folder / "incoming"
        self._database = database
        self._builder = builder
        self._server = server
        self._building: dict[str, asyncio.Task[Failure | None]] = {}
        self._failed: dict[str, tuple[Failure, float]] = {}
        self._used: dict[str, float] = {}
        """SHA-256 of a lock -> when its use was last noted."""
        self._lock = threading.Lock()
        self._turns = asyncio.Semaphore(1)
        self._closed = False

    async def start(self) -> None:
        """What a killed server left half-built goes."""
        await asyncio.to_thread(self._builder.tidy)
        await self._database.write(partial(forget_unfinished, server=self._server))

    def find(self, sha256: str) -> PackageMount | None:
        """What is ready; from now on it counts as just used."""
        folder = self._path(sha256)
        with self._lock:
            noted = self._used.get(sha256)
            if noted is None or time.monotonic() - noted > NOTED_EVERY:
                try:
                    os.utime(folder)
                except FileNotFoundError:
                    return None
                self._used[sha256] = time.monotonic()
        return PackageMount(sha256, folder / PACKAGES)

    async def ready(self, lock: bytes, seconds: float) -> PackageMount | Failure:
        """The environment of a lock, built where it is not there yet; a failure where that fails, or takes longer: then
        it goes on."""
        sha256 = hashlib.sha256(lock).hexdigest()
        found = self.find(sha256)
        if found is not None:
            return found
        task = self.begin(lock)
        if task is not None:
            await asyncio.wait({task}, timeout=seconds)
            if not task.done():
                return Failure(NOT_READY, f"its packages were still being installed after {seconds:g} s; try again")
        failed = self._failed.get(sha256)
        return self.find(sha256) or (failed[0] if failed else Failure(FAILED, "its packages could not be installed"))

    def begin(self, lock: bytes) -> asyncio.Task[Failure | None] | None:
        """See to it that the environment is built; None where it is there, or has just failed."""
        sha256 = hashlib.sha256(lock).hexdigest()
        failed = self._failed.get(sha256)
        if self._closed or (failed and time.monotonic() - failed[1] < AGAIN_SECONDS) or self.find(sha256):
            return None
        task = self._building.get(sha256)
        if task is None:
            self._failed.pop(sha256, None)
            task = self._building[sha256] = asyncio.create_task(self._build(sha256, lock))
            task.add_done_callback(lambda _: self._building.pop(sha256, None))
        return task

    async def rebuild(self, lock: bytes) -> PackageMount | Failure:
        """Install it once more, also where it is there or has just failed: that stays until the new one is whole."""
        sha256 = hashlib.sha256(lock).hexdigest()
        while (task := self._building.get(sha256)) is not None:
            await asyncio.wait({task})
        if self._closed:
            return Failure(FAILED, "the server is stopping")
        before = self.find(sha256)
        task = self._building[sha256] = asyncio.create_task(self._build(sha256, lock))
        task.add_done_callback(lambda _: self._building.pop(sha256, None))
        failure = await asyncio.shield(task)
        if failure is not None and before is not None:
            self._failed.pop(sha256, None)
            await self._note(sha256, "ready", size=await asyncio.to_thread(_size, self._path(sha256)))
        return failure or self.find(sha256) or Failure(FAILED, "its packages could not be installed")

    def installed(self) -> list[Installed]:
        """Blocking: the environments of this server, the last used ones first."""
        found = []
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            used_at = datetime.fromtimestamp(folder.stat().st_mtime, UTC)
            found.append(Installed(folder.name.partition("-")[0], used_at))
        return sorted(found, key=lambda one: one.used_at, reverse=True)

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _build(self, sha256: str, lock: bytes) -> Failure | None:
        await self._note(sha256, "building")
        try:
            async with self._turns:
                built = await self._builder.build(lock, self._path(sha256))
        except BuildFailed as error:
            log.warning("the packages of lock %s could not be installed: %s", sha256[:12], error.message)
            failure = Failure(FAILED, f"its packages could not be installed: {error.message}")
            self._failed[sha256] = (failure, -AGAIN_SECONDS if error.passing else time.monotonic())
            await self._note(sha256, "failed", error.message)
            return failure
        except Exception:
            log.exception("the packages of lock %s could not be installed", sha256[:12])
            failure = Failure(FAILED, "its packages could not be installed: the reason is in the server's log")
            self._failed[sha256] = (failure, time.monotonic())
            await self._note(sha256, "failed", failure.message)
            return failure
        await self._note(sha256, "ready", size=built.size_bytes)
        return None

    async def _note(self, sha256: str, state: State, message: str = "", size: int = 0) -> None:
        """For others to see: that it cannot be written keeps nobody from running."""
        now = datetime.now(UTC)
        work = partial(note_state, sha256=sha256, server=self._server, state=state, now=now, message=message, size=size)
        with contextlib.suppress(SkilleryError):
            await self._database.write(work)

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}-{sys.implementation.cache_tag}"

    # -- what goes again ---------------------------------------------------------------------------------------------

    def drop_unused(self, grace_until: datetime, unused_since: datetime | None, *, dry_run: bool) -> Iterator[int]:
        """Blocking: the bytes of each environment that goes: of no version and not used since `grace_until`, or not
        used since `unused_since` (None: those stay)."""
        dropped = False
        for folder in sorted(self._folder.iterdir()) if self._folder.is_dir() else ():
            sha256 = folder.name.partition("-")[0]
            needed = self._database.read_now(partial(needed_of, digests=[sha256]))
            since = unused_since if needed else grace_until
            if since is None or not _is_older(folder, since):
                continue
            size = _size(folder)
            if dry_run or self._drop(folder, sha256, since):
                dropped = dropped or not dry_run
                yield size
        if dropped:
            self._builder.forget_downloads()

    def _drop(self, folder: Path, sha256: str, since: datetime) -> bool:
        """Its name goes at once, so that nobody finds half of it."""
        self._away.mkdir(parents=True, exist_ok=True)
        away = self._away / secrets.token_hex(16)
        with self._lock:
            if not _is_older(folder, since):
                return False
            self._used.pop(sha256, None)
            folder.rename(away)
        self._database.write_now(partial(forget_state, sha256=sha256, server=self._server))
        shutil.rmtree(away)
        return True


def _size(folder: Path) -> int:
    """Blocking."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _is_older(path: Path, moment: datetime) -> bool:
    try:
        return path.stat().st_mtime < moment.timestamp()
    except FileNotFoundError:
        return False
