"""The build of an environment from its lock.

Packages are downloaded and unpacked in the sandbox. The host links their files into one folder, and then renames the
folder.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from skillery.context.queue import BuildProgress, BuildQueue
from skillery.environments.downloads import Fetched, IncomingFiles, build_wheel
from skillery.environments.folders import METADATA_FILE, PACKAGES, Built
from skillery.environments.jobs import BuildFailed, JobFailed, Jobs, not_written, too_large, workers
from skillery.environments.kinds import Packages, read_packages
from skillery.environments.sources import PackageSources
from skillery.environments.trees import (
    BLOCK,
    TreeRecord,
    Trees,
    TreeWriter,
    key_of,
    make_folder,
    on_disk,
    rename_into_place,
)
from skillery.environments.uv_errors import cleaned, job_failure
from skillery.environments.wheels import MOST_FILES
from skillery.errors import SkilleryError
from skillery.formats.requirements import InvalidLock, LeftOut, Pin
from skillery.formats.wording import printable

log = logging.getLogger(__name__)
MIB = 1024 * 1024
MATPLOTLIB = "matplotlib/font_manager.py"
WARM_SECONDS = 120.0


class ListOfFonts(msgspec.Struct, frozen=True):
    """The file in which matplotlib lists the fonts of the system. Code of packages has written it in the sandbox."""

    fonts: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{16}$")]
    """The state of the fonts (`_pictures.state_of_fonts`). With other fonts, runs do not use the list."""
    name: Annotated[str, msgspec.Meta(pattern=r"^fontlist-v[0-9A-Za-z.]{1,40}\.json$")]
    content: Annotated[str, msgspec.Meta(max_length=4 * MIB)]

    def write(self, packages: Path) -> int:
        """Write the file into the folder of the packages. Return the disk use. Raise OSError, also if a package has
        the same file: it may be a link to a file that environments share. Blocking.
        """
        path = packages / ".caches" / f"matplotlib-{self.fonts}" / self.name
        folders = make_folder(path.parent)
        with path.open("x", encoding="utf-8") as file:
            file.write(self.content)
        path.chmod(0o444)
        return folders * BLOCK + on_disk(path.stat().st_size)


class _Build(NamedTuple):
    """The state of one build."""

    quarantine: Path
    progress: BuildProgress
    make_room: Callable[[int, frozenset[str]], None]
    tree_keys: dict[Pin, str]
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
        packages, left_out = await asyncio.to_thread(read_packages, lock), list[LeftOut]()
        while True:
            attempt = build._replace(quarantine=build.quarantine / str(len(left_out)))
            try:
                return await self._build(attempt, packages, target, tuple(left_out), force=force)
            except BuildFailed as error:
                rest = None if error.passing else packages.after(error)
                if rest is None:
                    raise
                packages, dropped = rest
                log.warning("%s left out: %s", ", ".join(package.name for package in dropped), error.message)
                left_out += dropped
                for pin in build.tree_keys.keys() - set(packages.pins):
                    del build.tree_keys[pin]

    async def _build(
        self, build: _Build, packages: Packages, target: Path, left_out: tuple[LeftOut, ...], *, force: bool
    ) -> Built:
        pins = packages.pins
        build.quarantine.mkdir(parents=True)
        build.progress.total = len(pins)
        if not force:
            build.tree_keys.update({pin: key for pin in pins if (key := self.trees.find(pin, packages.python))})
        build.progress.done = len(build.tree_keys)
        missing = [pin for pin in pins if pin not in build.tree_keys]
        if missing:
            await self._fetch_missing(build, packages, missing)
        build.progress.step = "linking the packages"
        made = build.quarantine / "environment"
        built = await asyncio.to_thread(self._put_together, build, packages, made, left_out)
        # The job has the Python of the server, which cannot import packages for another one.
        own = built.own_bytes + (0 if packages.python else await self._list_fonts(build, made / PACKAGES))
        built = msgspec.structs.replace(built, own_bytes=own)
        await asyncio.to_thread(self._complete, made, built, target)
        return built

    def _put_together(self, build: _Build, packages: Packages, made: Path, left_out: tuple[LeftOut, ...]) -> Built:
        keys = {pin: build.tree_keys[pin] for pin in packages.pins}
        size = sum(self.trees.about(keys[pin]).size_bytes for pin in packages.places)
        if size > self._max_mb * MIB:
            raise too_large(self._max_mb)
        build.make_room(0, frozenset(keys.values()))
        own = packages.link({pin: self.trees.files(key) for pin, key in keys.items()}, made)
        build.make_room(own, frozenset(keys.values()))
        return Built(tuple(keys.values()), size, left_out, own)

    def _complete(self, made: Path, built: Built, target: Path) -> None:
        (made / METADATA_FILE).write_bytes(msgspec.json.encode(built))
        rename_into_place(made, target, self._incoming)

    async def _list_fonts(self, build: _Build, packages: Path) -> int:
        """Let matplotlib list the fonts in the sandbox, once for all runs. Return the disk use of the list, or 0 if the
        packages have no matplotlib, or if it fails.
        """
        if not await asyncio.to_thread((packages / MATPLOTLIB).is_file):
            return 0
        build.progress.step = "listing the fonts for matplotlib"
        try:
            answer = await self._jobs.run("warm", {}, seconds=WARM_SECONDS, installed=packages, build=build.progress)
            fonts = msgspec.convert(answer.result, type=ListOfFonts)
            return await asyncio.to_thread(fonts.write, packages)
        except (JobFailed, BuildFailed, SkilleryError, msgspec.ValidationError, OSError) as error:
            log.warning("matplotlib lists the fonts in each run: %s", printable(str(error), 200))
            return 0

    # -- what is not there yet ---------------------------------------------------------------------------------------

    async def _fetch_missing(self, build: _Build, packages: Packages, pins: Sequence[Pin]) -> None:
        """Download and unpack the missing packages. Files are unpacked while later files are downloaded."""
        build.progress.step = "querying the package index"
        incoming = IncomingFiles(pins, build.quarantine, self._max_mb, build.progress)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(packages.fetch(self._jobs, self._sources, pins, incoming, self._seconds))
                while (fetched := await incoming.whole.get()) is not None:
                    group.create_task(self._add_package(build, packages, fetched))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        missing_pin = next((pin for pin in pins if pin not in build.tree_keys), None)
        if missing_pin is not None:
            raise BuildFailed(f"{missing_pin.name} {missing_pin.version} was not delivered by the sandbox")

    async def _add_package(self, build: _Build, packages: Packages, fetched: Fetched) -> None:
        try:
            await self._add(build, packages, fetched)
        except BuildFailed as error:
            error.package = "" if error.passing else fetched.pin.name
            raise

    async def _add(self, build: _Build, packages: Packages, fetched: Fetched) -> None:
        package = f"{fetched.pin.name} {fetched.pin.version}"
        if packages.is_source(fetched):
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
        await self._unpack(build, packages, fetched)
        build.progress.done += 1

    async def _unpack(self, build: _Build, packages: Packages, fetched: Fetched) -> None:
        quarantined, spent = (
            build.quarantine / fetched.digest.rpartition(":")[2],
            sum(self.trees.about(key).size_bytes for key in build.tree_keys.values()),
        )
        left = self._max_mb * MIB - spent
        listed, unpacking = await asyncio.to_thread(packages.files_of, fetched), packages.unpacking
        writer = TreeWriter(listed, quarantined, left, self._max_mb)
        args = {"max_bytes": left, "max_files": MOST_FILES, "workers": workers()}
        subject = f"{listed.package} could not be unpacked"
        try:
            answer = await self._jobs.run(
                unpacking.task,
                args,
                seconds=self._seconds,
                receiver=writer,
                paths={unpacking.file: fetched.path},
                build=build.progress,
            )
        except JobFailed as stopped:
            raise job_failure(subject, stopped) from None
        if answer.result:
            raise self._unpack_error(listed.package, subject, answer.result)
        await asyncio.to_thread(self._keep, build, fetched, writer, quarantined, packages.python)

    def _keep(self, build: _Build, fetched: Fetched, writer: TreeWriter, path: Path, python: str) -> None:
        fetched.path.unlink()
        tree: TreeRecord = writer.finish()
        key = key_of(fetched.digest, python)
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
