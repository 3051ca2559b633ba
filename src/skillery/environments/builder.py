"""The build of an environment from its lock.

Wheels are downloaded and unpacked in the sandbox. The host links their files into one folder, and then renames the
folder.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from skillery.context.queue import BuildProgress, BuildQueue
from skillery.environments.definitions import PackageSources
from skillery.environments.downloads import Fetched, IncomingFiles, build_wheel, fetch
from skillery.environments.jobs import BuildFailed, JobFailed, Jobs, not_written, too_large, workers
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
from skillery.environments.wheels import MOST_FILES, read_wheel
from skillery.errors import SkilleryError
from skillery.formats.requirements import InvalidLock, LeftOut, Pin, Tiers, read_lock, tiers_in, without
from skillery.formats.wording import printable

log = logging.getLogger(__name__)
MIB = 1024 * 1024
PACKAGES, METADATA_FILE = "packages", "environment.json"


class Built(msgspec.Struct, frozen=True):
    """Metadata of an environment, stored next to its packages."""

    trees: tuple[str, ...]
    size_bytes: int
    left_out: tuple[LeftOut, ...] = ()
    """The inferred packages that could not be installed."""
    own_bytes: int = 0
    """Disk use of the environment that the trees do not include: folders, and copies if the disk does not support
    links.
    """


class _Build(NamedTuple):
    """The state of one build."""

    quarantine: Path
    progress: BuildProgress
    make_room: Callable[[int, frozenset[str]], None]
    tree_keys: dict[str, str]
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
                for name in build.tree_keys.keys() - {pin.name for pin in pins}:
                    del build.tree_keys[name]

    async def _build(
        self, build: _Build, pins: Sequence[Pin], target: Path, left_out: tuple[LeftOut, ...], *, force: bool
    ) -> Built:
        build.quarantine.mkdir(parents=True)
        build.progress.total = len(pins)
        if not force:
            build.tree_keys.update({pin.name: key for pin in pins if (key := self.trees.find(pin.hashes))})
        build.progress.done = len(build.tree_keys)
        missing = [pin for pin in pins if pin.name not in build.tree_keys]
        if missing:
            await self._fetch_missing(build, missing)
        build.progress.step = "linking the packages"
        return await asyncio.to_thread(self._put_together, build, pins, target, left_out)

    def _put_together(self, build: _Build, pins: Sequence[Pin], target: Path, left_out: tuple[LeftOut, ...]) -> Built:
        keys = tuple(build.tree_keys[pin.name] for pin in pins)
        about = {key: self.trees.about(key) for key in keys}
        size = sum(tree.size_bytes for tree in about.values())
        if size > self._max_mb * MIB:
            raise too_large(self._max_mb)
        build.make_room(0, frozenset(keys))
        made = build.quarantine / "environment"
        own = link([self.trees.files(key) for key in keys], made / PACKAGES)
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
                group.create_task(fetch(self._jobs, self._sources, pins, incoming, self._seconds))
                while (fetched := await incoming.whole.get()) is not None:
                    group.create_task(self._add_package(build, fetched))
        except ExceptionGroup as several:
            raise several.exceptions[0] from None
        missing_pin = next((pin for pin in pins if pin.name not in build.tree_keys), None)
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
        if not fetched.is_wheel:
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
            build.quarantine / fetched.sha256,
            sum(self.trees.about(key).size_bytes for key in build.tree_keys.values()),
        )
        left = self._max_mb * MIB - spent
        wheel = await asyncio.to_thread(read_wheel, fetched.path, fetched.pin)
        writer = TreeWriter(wheel, quarantined, left, self._max_mb)
        args = {"max_bytes": left, "max_files": MOST_FILES, "workers": workers()}
        subject = f"{wheel.package} could not be unpacked"
        try:
            answer = await self._jobs.run(
                "unpack",
                args,
                seconds=self._seconds,
                receiver=writer,
                paths={"wheel": fetched.path},
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
        key = key_of(fetched.sha256)
        build.make_room(tree.size_bytes, frozenset(build.tree_keys.values()))
        self.trees.keep(path, key)
        build.tree_keys[fetched.pin.name] = key

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
                return BuildFailed(f"{package} is not a valid wheel")
        return BuildFailed(f"{subject}: {cleaned(detail, 200)}")


def link(trees: Iterable[Path], target: Path) -> int:
    """Link the files of all trees into the folder `target`. Return the disk use of its folders and copies. Blocking.

    If two trees have a file of the same name, the file and its compiled code come from the first tree.
    """
    size = 0
    owners: dict[str, int] = {}
    make_folder(target)
    for number, tree in enumerate(trees):
        for folder, names in _walk(tree):
            if folder and _make_new_folder(target / folder):
                size += BLOCK
            for name in names:
                path = f"{folder}/{name}" if folder else name
                source = _source_of(path)
                if owners.setdefault(source, number) != number or owners.setdefault(path, number) != number:
                    continue
                if not _link(tree / path, target / path):
                    size += on_disk((target / path).stat().st_size)
    return size


def _source_of(path: str) -> str:
    """Return the module of a file with compiled code; for any other file, return its path."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc") or not (folder == "__pycache__" or folder.endswith("/__pycache__")):
        return path
    above = folder.removesuffix("__pycache__")
    return f"{above}{name.removesuffix(f'.{sys.implementation.cache_tag}.pyc')}.py"


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder, relative to the root, with its files. A folder comes before its subfolders."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        names = []
        with os.scandir(root / folder) as entries:
            below = []
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                below.append(path) if entry.is_dir(follow_symlinks=False) else names.append(entry.name)
        waiting += below
        yield folder, names


def _make_new_folder(path: Path) -> bool:
    """Create a folder. Return False if it exists."""
    try:
        path.mkdir()
        path.chmod(0o755)
    except FileExistsError:
        if not path.is_dir():
            raise _clash(path.name) from None
        return False
    return True


def _link(source: Path, target: Path) -> bool:
    """Link a file. If the disk does not support links, copy the file and return False."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise _clash(target.name) from None
    except OSError as error:
        if error.errno is None or target.exists():
            raise
        shutil.copy2(source, target)
        return False
    return True


def _clash(name: str) -> BuildFailed:
    return BuildFailed(f"two packages have '{printable(name, 128)}', one as a file, one as a folder")
