"""The kinds of packages: a lock has packages of Python or of npm, and a build treats both alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import msgspec

from skillery.environments.downloads import Fetched, IncomingFiles, fetch
from skillery.environments.folders import PACKAGES, link, link_npm
from skillery.environments.jobs import BuildFailed, Jobs, Task
from skillery.environments.npm import fetch_npm
from skillery.environments.sources import PackageSources
from skillery.environments.wheels import ListedFiles, NpmFiles, read_wheel
from skillery.formats.npm import NpmPackage, is_npm_lock, read_npm_lock
from skillery.formats.package_json import MODULES
from skillery.formats.requirements import LeftOut, Pin, Tiers, read_lock, tiers_in, without
from skillery.formats.script_blocks import python_of
from skillery.formats.wording import printable


class Unpacking(NamedTuple):
    """The job that unpacks a file, and its name for this file."""

    task: Task
    file: str


class Packages(Protocol):
    """The packages of one lock that an environment has."""

    @property
    def pins(self) -> Sequence[Pin]:
        """The packages. Each occurs once."""
        ...

    @property
    def places(self) -> Sequence[Pin]:
        """The package of each folder that gets links to all files of a package."""
        ...

    @property
    def python(self) -> str:
        """The version of another Python that the packages are for, or ""."""
        ...

    @property
    def unpacking(self) -> Unpacking:
        """The job that unpacks each downloaded file."""
        ...

    def after(self, failure: BuildFailed) -> tuple[Packages, list[LeftOut]] | None:
        """Return the rest after a failure, and the packages that it leaves out. Return None if the failure ends the
        build: declared packages need the package at fault.
        """
        ...

    async def fetch(
        self, jobs: Jobs, sources: PackageSources, pins: Sequence[Pin], incoming: IncomingFiles, seconds: float
    ) -> None:
        """Download the file of each pin, and put it into `incoming.whole`; put None at the end. Raise BuildFailed on
        failure.
        """
        ...

    def is_source(self, fetched: Fetched) -> bool:
        """Return whether a wheel must be built from the file."""
        ...

    def files_of(self, fetched: Fetched) -> ListedFiles:
        """Return the files that may be unpacked. Raise BuildFailed for an invalid file. Blocking."""
        ...

    def link(self, trees: Mapping[Pin, Path], environment: Path) -> int:
        """Link the trees of the packages into an environment. Return the disk use of folders and copies. Blocking."""
        ...


def read_packages(lock: bytes) -> Packages:
    """Return the packages of a lock that fit this server. Raise InvalidLock. Blocking."""
    if is_npm_lock(lock):
        return NpmPackages(tuple(package for package in read_npm_lock(lock).packages if package.fits_here()))
    return PythonPackages(read_lock(lock), lock)


class PythonPackages(NamedTuple):
    """See `Packages`. `lock` is a `requirements.lock`, and `pins` are its packages without the left-out ones."""

    pins: tuple[Pin, ...]
    lock: bytes

    @property
    def places(self) -> Sequence[Pin]:
        return self.pins

    @property
    def python(self) -> str:
        return python_of(self.lock)

    @property
    def unpacking(self) -> Unpacking:
        return Unpacking("unpack", "wheel")

    def after(self, failure: BuildFailed) -> tuple[Packages, list[LeftOut]] | None:
        rest = without(self.lock, self.pins, failure.package) if failure.package else None
        if rest is None and failure.reason == "too_large":
            rest = without(self.lock, self.pins, "")
        if rest is None:
            return None
        optional = (tiers_in(self.lock) or Tiers()).optional
        left_out = [_left_out(name, "optional" if name in optional else "inferred", failure) for name in rest.left_out]
        return self._replace(pins=rest.pins), left_out

    async def fetch(
        self, jobs: Jobs, sources: PackageSources, pins: Sequence[Pin], incoming: IncomingFiles, seconds: float
    ) -> None:
        sources = msgspec.structs.replace(sources, python=self.python)
        await fetch(jobs, sources, pins, incoming, seconds)

    def is_source(self, fetched: Fetched) -> bool:
        return not fetched.name.endswith(".whl")

    def files_of(self, fetched: Fetched) -> ListedFiles:
        return read_wheel(fetched.path, fetched.pin)

    def link(self, trees: Mapping[Pin, Path], environment: Path) -> int:
        return link([trees[pin] for pin in self.pins], environment / PACKAGES)


class NpmPackages(NamedTuple):
    """See `Packages`. `packages` are those of an `npm.lock`, without the left-out ones. A package may have several
    folders.
    """

    packages: tuple[NpmPackage, ...]

    @property
    def pins(self) -> Sequence[Pin]:
        return list(dict.fromkeys(self.places))

    @property
    def places(self) -> Sequence[Pin]:
        return [package.pin for package in self.packages]

    @property
    def python(self) -> str:
        return ""

    @property
    def unpacking(self) -> Unpacking:
        return Unpacking("npm_unpack", "package")

    def after(self, failure: BuildFailed) -> tuple[Packages, list[LeftOut]] | None:
        inferred = [package for package in self.packages if package.inferred]
        dropped = [package for package in inferred if failure.package in {"", package.package}]
        rest = tuple(package for package in self.packages if package not in dropped)
        left_out = [_left_out(name, "inferred", failure) for name in sorted({package.package for package in dropped})]
        return (NpmPackages(rest), left_out) if dropped else None

    async def fetch(
        self, jobs: Jobs, sources: PackageSources, pins: Sequence[Pin], incoming: IncomingFiles, seconds: float
    ) -> None:
        await fetch_npm(jobs, sources.npm, pins, incoming, seconds)

    def is_source(self, _: Fetched) -> bool:
        return False

    def files_of(self, fetched: Fetched) -> ListedFiles:
        package = f"{fetched.pin.name} {fetched.pin.version}"
        return ListedFiles(package, NpmFiles(package))

    def link(self, trees: Mapping[Pin, Path], environment: Path) -> int:
        placed = {package.path: (package, trees[package.pin]) for package in self.packages}
        return link_npm(placed, environment / MODULES)


def _left_out(name: str, tier: Literal["optional", "inferred"], failure: BuildFailed) -> LeftOut:
    return LeftOut(name, tier, failure.reason, printable(failure.message, 200))
