"""The build of an environment from its lock.

Wheels are downloaded and unpacked in the sandbox. The host links their files into one folder, and then renames the
folder.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from skillery.environments.disk import rename_into_place
from skillery.environments.downloads import BuildProgress, Fetched, IncomingFiles, build_wheel, fetch
from skillery.environments.errors import BuildFailed, not_written, too_large
from skillery.environments.hard_links import link
from skillery.environments.jobs import JobFailed, Jobs, workers
from skillery.environments.sources import PackageSources
from skillery.environments.tree_writer import TreeWriter
from skillery.environments.trees import TreeRecord, Trees, key_of
from skillery.environments.uv_errors import cleaned, job_failure
from skillery.environments.wheels import MOST_FILES, read_wheel
from skillery.errors import SkilleryError
from skillery.formats.requirements import InvalidLock, Pin, read_lock
from skillery.formats.wording import printable

MIB = 1024 * 1024
PACKAGES, METADATA_FILE = "packages", "environment.json"


class Built(msgspec.Struct, frozen=True):
    """Metadata of an environment, stored next to its packages."""

    trees: tuple[str, ...]
    size_bytes: int
    own_bytes: int = 0
    """Disk use of the environment that the trees do not include: folders, and copies if the disk does not support
    links.
    """


class _Build(NamedTuple):
    """The state of one build."""

    aside: Path
    progress: BuildProgress
    make_room: Callable[[int, frozenset[str]], None]
    found: dict[str, str]
    """The key of the tree of each package."""


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
        self.busy: dict[Path, dict[str, str]] = {}
        """Trees in use by active builds, by the folder of the build. Builds with equal trees are different builds."""

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

        After an error or a cancellation, `target` does not exist. `make_room` is called in a thread, with the bytes
        that the build needs and the trees that must stay. With `force`, existing trees are not used.
        """
        build = _Build(self._incoming / secrets.token_hex(16), progress, make_room, {})
        self.busy[build.aside] = build.found
        try:
            async with asyncio.timeout(self._seconds):
                return await self._build(build, read_lock(lock), target, force=force)
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
            del self.busy[build.aside]
            await asyncio.shield(asyncio.to_thread(shutil.rmtree, build.aside, ignore_errors=True))

    async def _build(self, build: _Build, pins: Sequence[Pin], target: Path, *, force: bool) -> Built:
        build.aside.mkdir(parents=True)
        build.progress.total = len(pins)
        if not force:
            build.found.update({pin.name: key for pin in pins if (key := self.trees.find(pin.hashes))})
        build.progress.done = len(build.found)
        missing = [pin for pin in pins if pin.name not in build.found]
        if missing:
            await self._fetch_missing(build, missing)
        build.progress.step = "linking the packages"
        return await asyncio.to_thread(self._put_together, build, target)

    def _put_together(self, build: _Build, target: Path) -> Built:
        keys = tuple(build.found[name] for name in sorted(build.found))
        about = {key: self.trees.about(key) for key in keys}
        size = sum(tree.size_bytes for tree in about.values())
        if size > self._max_mb * MIB:
            raise too_large(self._max_mb)
        build.make_room(0, frozenset(keys))
        made = build.aside / "environment"
        own = link([self.trees.files(key) for key in keys], made / PACKAGES)
        build.make_room(own, frozenset(keys))
        built = Built(keys, size, own)
        (made / METADATA_FILE).write_bytes(msgspec.json.encode(built))
        rename_into_place(made, target, self._incoming)
        return built

    # -- what is not there yet ---------------------------------------------------------------------------------------

    async def _fetch_missing(self, build: _Build, pins: Sequence[Pin]) -> None:
        """Download and unpack the missing packages. Files are unpacked while later files are downloaded."""
        build.progress.step = "querying the package index"
        incoming = IncomingFiles(pins, build.aside, self._max_mb, build.progress)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fetch(self._jobs, self._sources, pins, incoming, self._seconds))
                while (fetched := await incoming.whole.get()) is not None:
                    group.create_task(self._add_package(build, fetched))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        missing_pin = next((pin for pin in pins if pin.name not in build.found), None)
        if missing_pin is not None:
            raise BuildFailed(f"{missing_pin.name} {missing_pin.version} was not delivered by the sandbox")

    async def _add_package(self, build: _Build, fetched: Fetched) -> None:
        package = f"{fetched.pin.name} {fetched.pin.version}"
        if not fetched.is_wheel:
            if not self._sources.is_built(fetched.pin.name):
                raise BuildFailed(f"{package} has no wheel, and this server does not build it from source")
            build.progress.step = f"building {package} from source"
            wheel = await build_wheel(self._jobs, fetched, build.aside, self._max_mb, self._seconds, build.progress)
            fetched.path.unlink()
            fetched = wheel
        build.progress.step = f"unpacking {package}"
        await self._unpack(build, fetched)
        build.progress.done += 1

    async def _unpack(self, build: _Build, fetched: Fetched) -> None:
        aside, spent = (
            build.aside / fetched.sha256,
            sum(self.trees.about(key).size_bytes for key in build.found.values()),
        )
        left = self._max_mb * MIB - spent
        wheel = await asyncio.to_thread(read_wheel, fetched.path, fetched.pin)
        writer = TreeWriter(wheel, aside, left, self._max_mb)
        args = {"max_bytes": left, "max_files": MOST_FILES, "workers": workers()}
        what = f"{wheel.package} could not be unpacked"
        try:
            answer = await self._jobs.run(
                "unpack", args, seconds=self._seconds, receiver=writer, given={"wheel": fetched.path}
            )
        except JobFailed as stopped:
            raise job_failure(what, stopped) from None
        if answer.told:
            raise self._unpack_error(wheel.package, what, answer.told)
        await asyncio.to_thread(self._keep, build, fetched, writer, aside)

    def _keep(self, build: _Build, fetched: Fetched, writer: TreeWriter, aside: Path) -> None:
        fetched.path.unlink()
        tree: TreeRecord = writer.finish()
        key = key_of(fetched.sha256)
        build.make_room(tree.size_bytes, frozenset(build.found.values()))
        self.trees.keep(aside, key)
        build.found[fetched.pin.name] = key

    def _unpack_error(self, package: str, what: str, told: dict[str, object]) -> BuildFailed:
        detail = printable(str(told.get("detail", "")), 200)
        match told.get("reason"):
            case "too_large":
                return too_large(self._max_mb, package)
            case "too_many_files":
                return BuildFailed(f"{package} has {detail} files, but at most {MOST_FILES} are allowed")
            case "no_file":
                return BuildFailed(f"{package} has '{detail}', which is not a regular file")
            case "encrypted":
                return BuildFailed(f"{package} has '{detail}', which is encrypted")
            case "no_archive":
                return BuildFailed(f"{package} is not a valid wheel")
        return BuildFailed(f"{what}: {cleaned(detail, 200)}")
