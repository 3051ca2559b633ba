"""The packages of a folder under test: locked and installed as for a published skill, with pytest for its tests.

Locks and environments stay in a separate home, the folder `authoring` in the home of the settings, so that they are
made once. Only folders that need packages open this home.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from skillery.app.builders import defined_in, packages_of, sources_of
from skillery.app.composition import open_server
from skillery.app.home import Home
from skillery.app.routes import HttpParts
from skillery.authoring.folder_runs import AUTHOR
from skillery.backends import Failure, Job, PackageMount, Sandbox
from skillery.context.queue import BuildProgress
from skillery.database import Database, migrate
from skillery.environments.dependency_locks import Locks
from skillery.environments.downloads import IncomingFiles
from skillery.environments.jobs import BuildFailed, Jobs
from skillery.environments.named import NamedEnvironments
from skillery.environments.npm import fetch_npm, store_name
from skillery.environments.store import Environments
from skillery.errors import PackagesNotOffered, StartupError, Unavailable
from skillery.formats.bundle import Bundle
from skillery.formats.npm import SOURCES, is_npm_lock, read_npm_lock
from skillery.formats.requirements import Pin, read_lock
from skillery.identity.quotas import UNLIMITED
from skillery.methods.core import Core
from skillery.plugins import load_plugins
from skillery.publishing.folders import SkillFolder
from skillery.publishing.gate import PublishingRules
from skillery.publishing.package_locks import lock_of, locks_of
from skillery.runs.packages import Needing, chosen_for, packages_for
from skillery.settings.groups import Quotas
from skillery.settings.load import Settings

FOLDER = "authoring"
WAIT_SECONDS = 60.0
BUILD_SECONDS = 3600.0
RETRY_SECONDS = 0.1


class FolderPackages:
    """The locks and environments of folders. Each method raises SkilleryError if packages cannot be locked or
    installed.
    """

    def __init__(self, locks: Locks, environments: Environments, named: NamedEnvironments) -> None:
        self.locks = locks
        self.named = named
        self._environments = environments

    async def in_job(self, job: Job, skills: Sequence[Needing], script: str = "") -> Job | Failure:
        """Return the job with the packages of its skills, chosen as on a server. The first skill is the one whose
        `script` or entrypoint runs. Return a Failure if the packages cannot be installed.
        """
        manifest, wait_ms = skills[0].manifest, int(BUILD_SECONDS * 1000)
        chosen = chosen_for(self.named.defined, manifest, script=script)
        packages = await packages_for(self._environments, self.named, chosen, skills, wait_ms)
        return packages.failure or packages.in_job(job)

    async def of_bundle(self, bundle: Bundle, required: Sequence[Needing] = ()) -> tuple[PackageMount, ...]:
        """Return the packages of the bundle, or of the default environment, and those of the required skills."""
        locks = [await self._lock_in(bundle) or b"", *(lock.content for skill in required if (lock := skill.locked))]
        return await self._mounts(locks, bundle)

    async def with_pytest(self, bundle: Bundle, required: Sequence[Needing] = ()) -> tuple[PackageMount, ...]:
        """Return the packages of the bundle and of the required skills in the versions of their locks, and pytest.

        If the lock has pytest, its version is used. Raise PackagesNotOffered if pytest cannot be found.
        """
        lock = await self._lock_in(bundle)
        pins = list(read_lock(lock) if lock is not None else ())
        pins += [pin for skill in required if skill.locked for pin in skill.locked.pins]
        if any(pin.name == "pytest" for pin in pins):
            return await self.of_bundle(bundle, required)
        try:
            return await self._mounts([await self.locks.make([*_exact(pins), "pytest"])], bundle)
        except PackagesNotOffered as error:
            hint = "Set packages.index_urls or packages.wheelhouse, or write the tests with unittest."
            raise PackagesNotOffered(f"the tests need pytest, but {error.message}", hint=hint) from None

    async def _lock_in(self, bundle: Bundle) -> bytes | None:
        lock = lock_of(bundle)
        if lock is not None or self.named.defined.default is None:
            return lock
        return await self._lock_of_default()

    async def _lock_of_default(self) -> bytes:
        default = self.named.defined.default
        assert default is not None
        lock = await self.named.lock(default, BUILD_SECONDS)
        if isinstance(lock, Failure):
            raise Unavailable(lock.message)
        return lock.content

    async def _mounts(self, locks: Sequence[bytes], bundle: Bundle) -> tuple[PackageMount, ...]:
        """Return the packages of locks of Python, and those of npm that the bundle has locked."""
        npm_locks = [other for other in locks_of(bundle) if is_npm_lock(other)]
        mounts = []
        for content in [*(lock for lock in dict.fromkeys(locks) if read_lock(lock)), *npm_locks]:
            mount = await self._environments.ready(content, BUILD_SECONDS)
            if isinstance(mount, Failure):
                raise Unavailable(mount.message)
            mounts.append(mount)
        return tuple(mounts)


def _exact(pins: Sequence[Pin]) -> list[str]:
    return [*dict.fromkeys(f"{pin.name}=={pin.version}" for pin in pins)]


async def open_packages(settings: Settings, sandbox: Sandbox, stack: AsyncExitStack) -> FolderPackages:
    """Open the home of folders under test, and return its packages. The home stays open until the stack closes.

    Raise StartupError if another command holds the home for longer than WAIT_SECONDS.
    """
    home = await wait_for_home(settings.home / FOLDER)
    stack.callback(home.close)
    database = Database(f"sqlite:///{home.path / 'skillery.db'}", home.server_id)
    stack.callback(database.close)
    await asyncio.to_thread(migrate.upgrade, database)
    services = packages_of(settings, home, database, sandbox)
    stack.push_async_callback(services.environments.close)
    named = NamedEnvironments(database, services.locks, services.environments, defined_in(settings))
    stack.push_async_callback(named.close)
    await services.environments.start()
    return FolderPackages(services.locks, services.environments, named)


async def wait_for_home(path: Path) -> Home:
    """Lock the home. If another command holds it, wait up to WAIT_SECONDS. Raise StartupError if the home cannot be
    locked.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return Home(path)
        except StartupError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def fetch_npm_files(settings: Settings, locks: Sequence[bytes], folder: Path) -> list[str]:
    """Download the packages of npm locks that fit this system into a folder for `packages.npm_store`. Return the names
    of the new files.

    Raise InvalidLock, or Unavailable if a package cannot be downloaded.
    """
    packages = (package for lock in locks for package in read_npm_lock(lock).packages if package.fits_here())
    pins = [pin for pin in {package.pin: None for package in packages} if not _is_stored(pin, folder)]
    if not pins:
        return []
    sources, names = sources_of(settings), list[str]()
    sources = msgspec.structs.replace(sources, npm=msgspec.structs.replace(sources.npm, store=None))
    sandbox: Sandbox = load_plugins(settings.plugins_folder).open("sandbox", settings)
    with TemporaryDirectory(dir=folder) as incoming:
        files = IncomingFiles(pins, Path(incoming), settings.packages.total_mb, BuildProgress())
        try:
            await fetch_npm(Jobs(sandbox, sources, 1), sources.npm, pins, files, settings.packages.build_seconds)
        except BuildFailed as error:
            raise Unavailable(error.message) from None
        finally:
            await sandbox.close()
        while (fetched := await files.whole.get()) is not None:
            names.append(store_name(fetched.pin))
            fetched.path.rename(folder / names[-1])
    return names


def _is_stored(pin: Pin, folder: Path) -> bool:
    path = folder / store_name(pin)
    return path.is_file() and f"sha512:{hashlib.sha512(path.read_bytes()).hexdigest()}" in pin.hashes


# A registry that exists for one command and has the skills of some folders: a run there is a run of a published skill.
#
# The registry is in a temporary folder. It has no secrets, and its blobs are deleted with it.


# `skillery test` runs the examples.
RULES = PublishingRules(trials=False)


@asynccontextmanager
async def open_temporary_home(
    settings: Settings, skills: Sequence[SkillFolder]
) -> AsyncIterator[tuple[Core, HttpParts]]:
    """Open a new registry with these skills. Raise StartupError, and the errors of `Publisher.create_skill`."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="skillery-")))
        if _need_packages(settings, skills):
            await _share_environments(settings.home / FOLDER, folder, stack)
        home = Home(folder)
        stack.callback(home.close)
        plugins = load_plugins(settings.plugins_folder)
        server = open_server(_settings(settings, folder), plugins, home, bundled=False)
        core, edge = await stack.enter_async_context(server)
        for skill in skills:
            await core.publisher.create_skill(AUTHOR, skill.manifest, skill.skill_md, skill.files, RULES, UNLIMITED)
        yield core, edge


def _settings(settings: Settings, home: Path) -> Settings:
    """Return the settings of this machine for a registry that only this command reaches."""
    return msgspec.structs.replace(
        settings,
        home=home,
        host="127.0.0.1",
        database="",
        storage="directory",
        auth="open",
        secrets="database",
        quotas=Quotas(),
        default_visibility="public",
        grace_seconds=0.0,
    )


def _need_packages(settings: Settings, skills: Sequence[SkillFolder]) -> bool:
    runtimes: list[Any] = [skill.manifest.get("runtime") for skill in skills]
    declared = any(isinstance(runtime, dict) and {"dependencies", "npm"} & runtime.keys() for runtime in runtimes)
    may_import = bool(settings.packages.npm_url) and any(
        file.path.endswith(SOURCES) for skill in skills for file in skill.files
    )
    return declared or may_import or bool(settings.environments)


async def _share_environments(shared: Path, folder: Path, stack: AsyncExitStack) -> None:
    """Use the locks and environments that `skillery test` keeps, so that packages are installed once."""
    stack.callback((await wait_for_home(shared)).close)
    await asyncio.to_thread(_copy_locks, shared, folder)


def _copy_locks(shared: Path, folder: Path) -> None:
    # The shared database has locks and no skills.
    for file in shared.glob("skillery.db*"):
        shutil.copy(file, folder)
    (shared / "environments").mkdir(exist_ok=True)
    (folder / "environments").symlink_to(shared / "environments")
