"""The build of an environment from its lock.

Wheels are downloaded and unpacked in the sandbox. The host links their files into one folder, and then renames the
folder.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from skillery.context.queue import BuildProgress, BuildQueue
from skillery.environments.definitions import PackageSources
from skillery.environments.downloads import Fetched, IncomingFiles, build_wheel, fetch
from skillery.environments.folders import METADATA_FILE, PACKAGES, Built, link, link_npm
from skillery.environments.jobs import BuildFailed, JobFailed, Jobs, not_written, too_large, workers
from skillery.environments.npm import fetch_npm
from skillery.environments.trees import TreeRecord, Trees, TreeWriter, key_of, rename_into_place
from skillery.environments.uv_errors import cleaned, job_failure
from skillery.environments.wheels import MOST_FILES, NpmFiles, Wheel, read_wheel
from skillery.errors import SkilleryError
from skillery.formats.npm import NpmPackage, is_npm_lock, read_npm_lock
from skillery.formats.package_json import MODULES
from skillery.formats.requirements import InvalidLock, LeftOut, Pin, Tiers, read_lock, tiers_in, without
from skillery.formats.wording import printable

log = logging.getLogger(__name__)
MIB = 1024 * 1024


class _Build(NamedTuple):
    """The state of one build."""

    quarantine: Path
    progress: BuildProgress
    make_room: Callable[[int, frozenset[str]], None]
    tree_keys: dict[Pin, str]
    """The key of the tree of each package."""
    npm: tuple[NpmPackage, ...] | None = None
    """The packages of a lock of npm."""


class Builder:
    """Builds environments in one folder. Its subfolder `incoming` holds unfinished data, which the next start
    removes.
    """

    def __init__(self, folder: Path, jobs: Jobs, sources: PackageSources, seconds: float, max_mb: int) -> None:
        self._incoming = folder / "incoming"
        self.trees = Trees(folder / "trees", self._incoming)
        self._jobs = jobs
        self._sources = sources
        self._seconds = seconds
        self._max_mb = max_mb
        self.busy: dict[Path, dict[Pin, str]] = {}
        """Trees in use by active builds, by the folder of the build. Builds with equal trees are different builds."""

    @property
    def queue(self) -> BuildQueue:
        """The queue of the jobs of all builds."""
        return self._jobs.queue

    def tidy(self) -> None:
        """Remove the leftovers of a killed build. Blocking."""
        shutil.rmtree(self._incoming, ignore_errors=True)

    async def build(
        self,
        lock: bytes,
        target: Path,
        progress: BuildProgress,
        make_room: Callable[[int, frozenset[str]], None],
        *,
        force: bool = False,
    ) -> Built:
        """Build the environment of a lock in the folder `target`. Raise BuildFailed if a package cannot be installed.
        If declared packages do not need this package, leave it out instead.

        After an error or a cancellation, `target` does not exist. `make_room` is called in a thread, with the bytes
        that the build needs and the trees that must stay. With `force`, existing trees are not used.
        """
        build = _Build(self._incoming / secrets.token_hex(16), progress, make_room, {})
        self.busy[build.quarantine] = build.tree_keys
        try:
            async with asyncio.timeout(self._seconds):
                return await self._build_rest(build, lock, target, force=force)
        except TimeoutError:
            raise BuildFailed(
                f"the installation took longer than {self._seconds:g} s (the setting packages.build_seconds), "
                f"while {progress.step}"
            ) from None
        except InvalidLock as error:
            raise BuildFailed(f"the lock {error.message}") from None
        except SkilleryError as error:
            raise BuildFailed(error.message, passing=True) from None
        except OSError as error:
            raise not_written(error) from None
        finally:
            del self.busy[build.quarantine]
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, build.quarantine, ignore_errors=True))

    async def _build_rest(self, build: _Build, lock: bytes, target: Path, *, force: bool) -> Built:
        """Build the environment without the inferred packages that cannot be installed."""
        if is_npm_lock(lock):
            lock_of_npm = await asyncio.to_thread(read_npm_lock, lock)
            packages = [package for package in lock_of_npm.packages if package.fits_here()]
            return await self._build_npm(build, packages, target, force=force)
        pins, left_out = read_lock(lock), list[LeftOut]()
        tiers = tiers_in(lock) or Tiers()
        while True:
            attempt = build._replace(quarantine=build.quarantine / str(len(left_out)))
            try:
                return await self._build(attempt, pins, target, tuple(left_out), force=force)
            except BuildFailed as error:
                if error.passing:
                    raise
                rest = without(lock, pins, error.package) if error.package else None
                if rest is None and error.reason == "too_large":
                    rest = without(lock, pins, "")
                if rest is None:
                    raise
                log.warning("%s left out: %s", ", ".join(rest.left_out), error.message)
                detail = printable(error.message, 200)
                for name in rest.left_out:
                    tier: Literal["optional", "inferred"] = "optional" if name in tiers.optional else "inferred"
                    left_out.append(LeftOut(name, tier, error.reason, detail))
                pins = rest.pins
                for pin in build.tree_keys.keys() - set(pins):
                    del build.tree_keys[pin]

    async def _build_npm(self, build: _Build, packages: list[NpmPackage], target: Path, *, force: bool) -> Built:
        """Build the environment without the inferred packages that cannot be installed."""
        left_out = dict[str, LeftOut]()
        while True:
            quarantine = build.quarantine / str(len(left_out))
            pins = list(dict.fromkeys(package.pin for package in packages))
            attempt = build._replace(quarantine=quarantine, npm=tuple(packages))
            try:
                return await self._build(attempt, pins, target, tuple(left_out.values()), force=force)
            except BuildFailed as error:
                inferred = [package for package in packages if package.inferred]
                dropped = [package for package in inferred if not error.package or package.package == error.package]
                if error.passing or not dropped:
                    raise
                detail = printable(error.message, 200)
                names = sorted({package.package for package in dropped})
                log.warning("%s left out: %s", ", ".join(names), error.message)
                left_out |= {name: LeftOut(name, "inferred", error.reason, detail) for name in names}
                packages = [package for package in packages if package not in dropped]
                for pin in build.tree_keys.keys() - {package.pin for package in packages}:
                    del build.tree_keys[pin]

    async def _build(
        self, build: _Build, pins: Sequence[Pin], target: Path, left_out: tuple[LeftOut, ...], *, force: bool
    ) -> Built:
        build.quarantine.mkdir(parents=True)
        build.progress.total = len(pins)
        if not force:
            build.tree_keys.update({pin: key for pin in pins if (key := self.trees.find(pin))})
        build.progress.done = len(build.tree_keys)
        missing = [pin for pin in pins if pin not in build.tree_keys]
        if missing:
            await self._fetch_missing(build, missing)
        build.progress.step = "linking the packages"
        return await asyncio.to_thread(self._put_together, build, pins, target, left_out)

    def _put_together(self, build: _Build, pins: Sequence[Pin], target: Path, left_out: tuple[LeftOut, ...]) -> Built:
        keys = tuple(build.tree_keys[pin] for pin in pins)
        # A package of npm counts at each of its paths: every path has links to all its files.
        places = keys if build.npm is None else tuple(build.tree_keys[package.pin] for package in build.npm)
        size = sum(self.trees.about(key).size_bytes for key in places)
        if size > self._max_mb * MIB:
            raise too_large(self._max_mb)
        build.make_room(0, frozenset(keys))
        made = build.quarantine / "environment"
        if build.npm is None:
            own = link([self.trees.files(key) for key in keys], made / PACKAGES)
        else:
            trees = {each.path: (each, self.trees.files(build.tree_keys[each.pin])) for each in build.npm}
            own = link_npm(trees, made / MODULES)
        build.make_room(own, frozenset(keys))
        built = Built(keys, size, left_out, own)
        (made / METADATA_FILE).write_bytes(msgspec.json.encode(built))
        rename_into_place(made, target, self._incoming)
        return built

    # -- what is not there yet ---------------------------------------------------------------------------------------

    async def _fetch_missing(self, build: _Build, pins: Sequence[Pin]) -> None:
        """Download and unpack the missing packages. Files are unpacked while later files are downloaded."""
        build.progress.step = "querying the package index"
        incoming = IncomingFiles(pins, build.quarantine, self._max_mb, build.progress)
        try:
            async with asyncio.TaskGroup() as group:
                if build.npm is None:
                    group.create_task(fetch(self._jobs, self._sources, pins, incoming, self._seconds))
                else:
                    group.create_task(fetch_npm(self._jobs, self._sources.npm, pins, incoming, self._seconds))
                while (fetched := await incoming.whole.get()) is not None:
                    group.create_task(self._add_package(build, fetched))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        missing_pin = next((pin for pin in pins if pin not in build.tree_keys), None)
        if missing_pin is not None:
            raise BuildFailed(f"{missing_pin.name} {missing_pin.version} was not delivered by the sandbox")

    async def _add_package(self, build: _Build, fetched: Fetched) -> None:
        try:
            await self._add(build, fetched)
        except BuildFailed as error:
            error.package = "" if error.passing else fetched.pin.name
            raise

    async def _add(self, build: _Build, fetched: Fetched) -> None:
        package = f"{fetched.pin.name} {fetched.pin.version}"
        if build.npm is None and not fetched.is_wheel:
            if not self._sources.is_built(fetched.pin.name):
                message = f"{package} has no wheel, and this server does not build it from source"
                raise BuildFailed(message, reason="no_wheel")
            build.progress.step = f"building {package} from source"
            wheel = await build_wheel(
                self._jobs, fetched, build.quarantine, self._max_mb, self._seconds, build.progress
            )
            fetched.path.unlink()
            fetched = wheel
        build.progress.step = f"unpacking {package}"
        await self._unpack(build, fetched)
        build.progress.done += 1

    async def _unpack(self, build: _Build, fetched: Fetched) -> None:
        quarantined, spent = (
            build.quarantine / fetched.digest.rpartition(":")[2],
            sum(self.trees.about(key).size_bytes for key in build.tree_keys.values()),
        )
        left = self._max_mb * MIB - spent
        package = f"{fetched.pin.name} {fetched.pin.version}"
        if build.npm is None:
            wheel = await asyncio.to_thread(read_wheel, fetched.path, fetched.pin)
        else:
            wheel = Wheel(package, NpmFiles(package))
        writer = TreeWriter(wheel, quarantined, left, self._max_mb)
        args = {"max_bytes": left, "max_files": MOST_FILES, "workers": workers()}
        subject = f"{wheel.package} could not be unpacked"
        try:
            answer = await self._jobs.run(
                "unpack" if build.npm is None else "npm_unpack",
                args,
                seconds=self._seconds,
                receiver=writer,
                paths={"wheel" if build.npm is None else "package": fetched.path},
                build=build.progress,
            )
        except JobFailed as stopped:
            raise job_failure(subject, stopped) from None
        if answer.result:
            raise self._unpack_error(wheel.package, subject, answer.result)
        await asyncio.to_thread(self._keep, build, fetched, writer, quarantined)

    def _keep(self, build: _Build, fetched: Fetched, writer: TreeWriter, path: Path) -> None:
        fetched.path.unlink()
        tree: TreeRecord = writer.finish()
        key = key_of(fetched.digest)
        build.make_room(tree.size_bytes, frozenset(build.tree_keys.values()))
        self.trees.keep(path, key)
        build.tree_keys[fetched.pin] = key

    def _unpack_error(self, package: str, subject: str, message: dict[str, object]) -> BuildFailed:
        detail = printable(str(message.get("detail", "")), 200)
        match message.get("reason"):
            case "too_large":
                return too_large(self._max_mb, package)
            case "too_many_files":
                return BuildFailed(f"{package} has {detail} files, but at most {MOST_FILES} are allowed")
            case "no_file":
                return BuildFailed(f"{package} has '{detail}', which is not a regular file")
            case "encrypted":
                return BuildFailed(f"{package} has '{detail}', which is encrypted")
            case "no_archive":
                return BuildFailed(f"{package} is not a valid archive")
        return BuildFailed(f"{subject}: {cleaned(detail, 200)}")
