"""The environments of a server: one for each lock, shared by all runs.

A build starts when a skill with the lock is published on this server, at the latest when a run needs the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Literal

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from skillery.backends import Failure, FailureType, PackageMount
from skillery.context.queue import BuildProgress, BuildQueue, PackageWait, Watch, ignore
from skillery.database import Database
from skillery.database.tables import environments, named_locks, skill_files
from skillery.environments.builder import Builder
from skillery.environments.folders import Built, Installed, PackageMounts, Shelf
from skillery.environments.jobs import BuildFailed
from skillery.environments.trees import remove
from skillery.errors import SkilleryError
from skillery.formats.npm import NPM_LOCK
from skillery.formats.requirements import LOCK
from skillery.formats.script_blocks import LOCK_ENDING, LOCKS

# -- Database rows of installed environments. Each server installs its own files, and all servers see all states -------

IS_LOCK = skill_files.c.path.in_((LOCK, NPM_LOCK)) | skill_files.c.path.like(f"{LOCKS}%{LOCK_ENDING}")
"""The condition that a file of a version is a lock, of the skill or of a script."""
State = Literal["building", "ready", "failed"]


def note_state(
    connection: Connection,
    sha256: str,
    server: str,
    state: State,
    now: datetime,
    message: str = "",
    size: int = 0,
    progress: tuple[str, int, int] = ("", 0, 0),
) -> None:
    """Record the state of a lock on a server. `progress` is the step, the finished packages and the total."""
    key = {"lock_sha256": sha256, "server": server}
    step, done, total = progress
    new = {"state": state, "message": message, "size_bytes": size, "changed_at": now}
    new |= {"step": step, "done": done, "total": total}
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    add = dialect.insert(environments).values(**key, **new)
    connection.execute(add.on_conflict_do_update(index_elements=list(key), set_=new))


def forget_state(connection: Connection, sha256: str, server: str) -> None:
    connection.execute(
        delete(environments).where(environments.c.lock_sha256 == sha256, environments.c.server == server)
    )


def forget_unfinished(connection: Connection, server: str) -> None:
    """Delete the states of builds that a killed server did not finish."""
    unfinished = environments.c.state == "building"
    connection.execute(delete(environments).where(environments.c.server == server, unfinished))


def needed_of(connection: Connection, digests: list[str]) -> set[str]:
    """Return the digests that are locks of a version or of a named environment."""
    of_version = select(skill_files.c.sha256).where(skill_files.c.sha256.in_(digests), IS_LOCK)
    of_named = select(named_locks.c.sha256).where(named_locks.c.sha256.in_(digests))
    return {*connection.scalars(of_version), *connection.scalars(of_named)}


log = logging.getLogger(__name__)
MIB = 1024 * 1024
RETRY_SECONDS = 60.0
"""Seconds before a failed build is tried again, unless the cause was temporary."""
PROGRESS_SECONDS = 0.5
BUILDS_AT_ONCE, RESERVED_BUILDS = 3, 1


class Environments:
    """The installed environments. A folder with its final name is complete, and stays while a caller holds its
    mount.
    """

    def __init__(self, folder: Path, database: Database, builder: Builder, server: str, total_mb: int) -> None:
        self._shelf = Shelf(folder / "ready", folder / "incoming")
        self._mounts = PackageMounts(self._shelf)
        self._database = database
        self._builder = builder
        self._server = server
        self._total_mb = total_mb
        self._building: dict[str, asyncio.Task[Failure | None]] = {}
        self._progress: dict[str, BuildProgress] = {}
        self._failed: dict[str, tuple[Failure, float]] = {}
        self._queue = BuildQueue(BUILDS_AT_ONCE, RESERVED_BUILDS)
        self._closed = False

    async def start(self) -> None:
        """Remove the leftovers of a killed server: unfinished builds with their states, and all builds of a lock except
        the newest.
        """
        await asyncio.to_thread(self._builder.tidy)
        await asyncio.to_thread(self._shelf.tidy)
        await self._database.write(partial(forget_unfinished, server=self._server))

    def find(self, sha256: str) -> PackageMount | None:
        """Return the mount of an installed environment, or None if it is not installed.

        The use is recorded. The environment stays while the caller holds the mount.
        """
        return self._mounts.find(sha256)

    async def ready(
        self, lock: bytes, seconds: float, watch: Watch = ignore, *, is_awaited: bool = True
    ) -> PackageMount | Failure:
        """Return the environment of a lock. If it is not installed, build it, and pass the progress to `watch`.

        Return a failure if the build fails or takes longer than `seconds`. After a timeout, the build continues. The
        build goes before builds without a caller, unless `is_awaited` is false.
        """
        sha256 = hashlib.sha256(lock).hexdigest()
        mount = self.find(sha256)
        if mount is not None:
            return mount
        task = self.begin(lock)
        if task is not None:
            progress = self._progress[sha256]
            with progress.awaited(self._queue, self._builder.queue) if is_awaited else contextlib.nullcontext():
                await self._wait(task, progress, seconds, watch)
            if not task.done():
                elapsed = f"after {round(seconds, 1):g} s{self._progress_text(sha256)}"
                message = f"the packages were still being installed {elapsed}; try again"
                return Failure(FailureType.ENVIRONMENT_NOT_READY, message)
        return self.find(sha256) or self._last_failure(sha256)

    async def _wait(
        self, task: asyncio.Task[Failure | None], progress: BuildProgress, seconds: float, watch: Watch
    ) -> None:
        """Wait for a build up to `seconds`, and pass its progress to `watch`."""
        until = time.monotonic() + seconds
        while not task.done() and (left := until - time.monotonic()) > 0:
            watch(PackageWait(progress.step, progress.done, progress.total, self._queue.ahead(progress)))
            await asyncio.wait({task}, timeout=min(left, PROGRESS_SECONDS))

    def _progress_text(self, sha256: str) -> str:
        progress = self._progress.get(sha256)
        return f" ({progress.step}; {progress.done} of {progress.total} packages are installed)" if progress else ""

    def _last_failure(self, sha256: str) -> Failure:
        failed = self._failed.get(sha256)
        return failed[0] if failed else Failure(FailureType.ENVIRONMENT_FAILED, "the packages could not be installed")

    def begin(self, lock: bytes) -> asyncio.Task[Failure | None] | None:
        """Start a build, or return the build that is running.

        Return None if the environment is installed, if a build failed recently, or if the server is stopping.
        """
        sha256 = hashlib.sha256(lock).hexdigest()
        failed = self._failed.get(sha256)
        if self._closed or (failed and time.monotonic() - failed[1] < RETRY_SECONDS) or self.find(sha256):
            return None
        return self._building.get(sha256) or self._begin(sha256, lock, force=False)

    async def rebuild(self, lock: bytes) -> PackageMount | Failure:
        """Download and build the environment again, in a new folder. Return its mount or a failure.

        Active runs keep the old folder, which is removed after the last of these runs.
        """
        sha256 = hashlib.sha256(lock).hexdigest()
        while sha256 in self._building:
            await asyncio.wait({self._building[sha256]})
        if self._closed:
            return Failure(FailureType.ENVIRONMENT_NOT_READY, "the server is stopping")
        failure = await asyncio.shield(self._begin(sha256, lock, force=True))
        return failure or self.find(sha256) or self._last_failure(sha256)

    def installed(self) -> list[Installed]:
        """Return the environments of this server, most recently used first. Blocking."""
        return self._mounts.installed()

    async def close(self) -> None:
        self._closed = True
        tasks = list(self._building.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- building ------------------------------------------------------------------------------------------------------

    def _begin(self, sha256: str, lock: bytes, *, force: bool) -> asyncio.Task[Failure | None]:
        self._failed.pop(sha256, None)
        progress = self._progress[sha256] = BuildProgress()
        task = self._building[sha256] = asyncio.create_task(self._build(sha256, lock, progress, force=force))
        task.add_done_callback(partial(self._remove_task, sha256))
        return task

    def _remove_task(self, sha256: str, _: asyncio.Task[Failure | None]) -> None:
        self._building.pop(sha256, None)
        self._progress.pop(sha256, None)

    async def _build(self, sha256: str, lock: bytes, progress: BuildProgress, *, force: bool) -> Failure | None:
        try:
            built = await self._run_build(sha256, lock, progress, force=force)
        except BuildFailed as error:
            log.warning("the packages of lock %s could not be installed: %s", sha256[:12], error.message)
            failure = Failure(FailureType.ENVIRONMENT_FAILED, f"the packages could not be installed: {error.message}")
            return await self._note_failure(sha256, failure, error.message, passing=error.passing)
        except Exception:
            log.exception("the packages of lock %s could not be installed", sha256[:12])
            failure = Failure(
                FailureType.ENVIRONMENT_FAILED, "the packages could not be installed: see the log of the server"
            )
            return await self._note_failure(sha256, failure, failure.message)
        await asyncio.to_thread(self._mounts.select_newest, sha256)
        left_out = ", ".join(f"{entry.name} ({entry.detail})" for entry in built.left_out)
        await self._note(sha256, "ready", f"left out: {left_out}" if left_out else "", size=built.size_bytes)
        return None

    async def _run_build(self, sha256: str, lock: bytes, progress: BuildProgress, *, force: bool) -> Built:
        is_over = asyncio.Event()
        recorder = asyncio.create_task(self._record_progress(sha256, progress, is_over))
        try:
            async with self._queue.slot(progress):
                target = await asyncio.to_thread(self._shelf.next_folder, sha256)
                make_room = partial(self._make_room, sha256)
                return await self._builder.build(lock, target, progress, make_room, force=force)
        finally:
            # A cancelled write may still reach the database, and then later than the final state.
            is_over.set()
            await asyncio.gather(recorder, return_exceptions=True)

    async def _note_failure(self, sha256: str, failure: Failure, message: str, *, passing: bool = False) -> Failure:
        installed = await asyncio.to_thread(self._shelf.newest, sha256)
        if installed is None:
            self._failed[sha256] = (failure, -RETRY_SECONDS if passing else time.monotonic())
            await self._note(sha256, "failed", message)
        else:
            await self._note(sha256, "ready", message, installed.size_bytes)
        return failure

    async def _record_progress(self, sha256: str, progress: BuildProgress, is_over: asyncio.Event) -> None:
        """Record the progress of a build now and after each change, until `is_over`."""
        recorded = None
        while not is_over.is_set():
            state = (progress.step, progress.done, progress.total)
            if state != recorded:
                await self._note(sha256, "building", progress=state)
                recorded = state
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), PROGRESS_SECONDS)

    async def _note(
        self, sha256: str, state: State, message: str = "", size: int = 0, progress: tuple[str, int, int] = ("", 0, 0)
    ) -> None:
        """Record the state of a lock for other servers. Errors are ignored, because they must not prevent runs."""
        now = datetime.now(UTC)
        work = partial(
            note_state,
            sha256=sha256,
            server=self._server,
            state=state,
            now=now,
            message=message,
            size=size,
            progress=progress,
        )
        with contextlib.suppress(SkilleryError):
            await self._database.write(work)

    # -- removal -------------------------------------------------------------------------------------------------------

    def _make_room(self, sha256: str, size: int, needed: frozenset[str]) -> None:
        """Remove unused trees, then the least recently used environments, until `size` more bytes fit. Blocking.

        Raise BuildFailed if the bytes do not fit, and all that is left is in use.
        """
        limit = self._total_mb * MIB
        while (used := self._used_bytes()) + size > limit:
            if not self._drop_tree(needed) and not self._drop_least_used(sha256):
                raise BuildFailed(
                    f"the packages of this server need {(used + size) // MIB} MiB, but at most {self._total_mb} are "
                    "allowed (the setting packages.total_mb), and all installed packages are in use",
                    passing=True,
                )

    def _used_bytes(self) -> int:
        """Return the size of all trees, and of the files of environments that are not part of a tree."""
        trees = {key: tree.size_bytes for key, tree in self._builder.trees.all().items()}
        installed = self._shelf.all()
        alone = (
            max(0, environment.size_bytes - sum(trees.get(key, 0) for key in environment.trees))
            for environment in installed
        )
        return sum(trees.values()) + sum(alone) + sum(environment.own_bytes for environment in installed)

    def _drop_least_used(self, except_for: str) -> bool:
        return any(
            environment.lock != except_for and self._drop(environment, None)
            for environment in reversed(self.installed())
        )

    def _drop_tree(self, needed: frozenset[str], before: float | None = None) -> bool:
        """Remove one tree that no environment and no build needs. Return False if there is none. With `before`, only
        trees that are older than this time are removed.
        """
        in_use = {key for row in self._shelf.all() for key in row.trees}
        busy = {key for keys in list(self._builder.busy.values()) for key in list(keys.values())}
        for key in self._builder.trees.all():
            old = before is None or self._builder.trees.is_older(key, before)
            if key not in in_use | busy | needed and old:
                remove(self._builder.trees.move_away(key))
                return True
        return False

    def drop_unused(self, grace_until: datetime, unused_since: datetime | None, *, dry_run: bool) -> Iterator[int]:
        """Remove unused environments, and yield the size of each in bytes. Blocking.

        An environment that no version and no named environment needs is removed if it was not used since
        `grace_until`. Other environments are removed if they were not used since `unused_since`; None means never.
        Environments in use, and files that other environments share, stay.
        """
        for environment in self.installed():
            needed = self._database.read_now(partial(needed_of, digests=[environment.lock]))
            since = unused_since if needed else grace_until
            if since is None or environment.in_use or environment.used_at >= since:
                continue
            if dry_run or self._drop(environment, since):
                yield environment.size_bytes
        while not dry_run and self._drop_tree(frozenset(), grace_until.timestamp()):
            pass

    def _drop(self, installed: Installed, since: datetime | None) -> bool:
        taken = self._mounts.move_away(installed.folder, since)
        if taken is None:
            return False
        remove(taken)
        self._database.write_now(partial(forget_state, sha256=installed.lock, server=self._server))
        return True
