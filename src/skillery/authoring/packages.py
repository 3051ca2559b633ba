"""The packages of a folder under test: locked and installed as for a published skill, with pytest for its tests.

Locks and environments stay in a separate home, the folder `authoring` in the home of the settings, so that they are
made once. Only folders that need packages open this home.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from skillery.app.environments import packages_of
from skillery.app.home import Home
from skillery.app.named_environments import defined_in
from skillery.backends import Failure, PackageMount, Sandbox
from skillery.database import Database, migrate
from skillery.environments import Environments, Locks, check_python
from skillery.environments.named import NamedEnvironments
from skillery.errors import PackagesNotOffered, StartupError, Unavailable
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, with_file
from skillery.formats.requirements import LOCK, Pin, read_lock
from skillery.settings import Settings

FOLDER = "authoring"
WAIT_SECONDS = 60.0
BUILD_SECONDS = 3600.0
RETRY_SECONDS = 0.1


class FolderPackages:
    """The locks and environments of folders. Each method raises SkilleryError if packages cannot be locked or
    installed.
    """

    def __init__(self, locks: Locks, environments: Environments, named: NamedEnvironments) -> None:
        self._locks = locks
        self._environments = environments
        self._named = named

    async def install(self, bundle: Bundle, limits: BundleLimits) -> tuple[Bundle, tuple[PackageMount, ...]]:
        """Lock and install the declared packages of a skill. Return the bundle with its lock, and the packages of its
        runs.

        A skill without dependencies gets the default environment.
        """
        runtime = bundle.manifest.runtime
        check_python(runtime.requires_python if runtime else "")
        if runtime is None or not runtime.dependencies:
            default = self._named.defined.default
            return bundle, () if default is None else await self._mounts(await self._lock_of_default())
        given = next((file.content for file in bundle.files if file.path == LOCK), None)
        if given is not None:
            await self._locks.verify(runtime.dependencies, given)
            return bundle, await self._mounts(given)
        lock = await self._locks.make(runtime.dependencies)
        return with_file(bundle, BundleFile(LOCK, lock), limits), await self._mounts(lock)

    async def with_pytest(self, bundle: Bundle, packages: tuple[PackageMount, ...]) -> tuple[PackageMount, ...]:
        """Return an environment with the same versions of the same packages, and pytest."""
        lock = await self._lock_in(bundle)
        pins = read_lock(lock) if lock is not None else ()
        if any(pin.name == "pytest" for pin in pins):
            return packages
        try:
            return await self._mounts(await self._locks.make([*_exact(pins), "pytest"]))
        except PackagesNotOffered as error:
            hint = "Set packages.index_urls or packages.wheelhouse, or write the tests with unittest."
            raise PackagesNotOffered(f"the tests need pytest, but {error.message}", hint=hint) from None

    async def _lock_in(self, bundle: Bundle) -> bytes | None:
        runtime = bundle.manifest.runtime
        if runtime is not None and runtime.dependencies:
            return next(file.content for file in bundle.files if file.path == LOCK)
        return None if self._named.defined.default is None else await self._lock_of_default()

    async def _lock_of_default(self) -> bytes:
        default = self._named.defined.default
        assert default is not None
        found = await self._named.lock(default, BUILD_SECONDS)
        if isinstance(found, Failure):
            raise Unavailable(found.message)
        return found.content

    async def _mounts(self, lock: bytes) -> tuple[PackageMount, ...]:
        if not read_lock(lock):
            return ()
        found = await self._environments.ready(lock, BUILD_SECONDS)
        if isinstance(found, Failure):
            raise Unavailable(found.message)
        return (found,)


def _exact(pins: Sequence[Pin]) -> list[str]:
    return [f"{pin.name}=={pin.version}" for pin in pins]


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
