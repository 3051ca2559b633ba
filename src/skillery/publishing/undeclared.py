"""Undeclared packages: packages that the Python files of a bundle import, and that the skill does not declare."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence, Set
from itertools import accumulate, takewhile
from typing import NamedTuple, Protocol

import msgspec

from skillery.backends import Finding
from skillery.environments.definitions import Defined, Named
from skillery.errors import PackagesNotOffered, Refused, UnresolvableDependencies
from skillery.formats.bundle import SKILL_MD, BundleFile
from skillery.formats.foreign_requirements import inferred_requirement, installed_packages, stated_requirements
from skillery.formats.import_names import Providers, providers_of
from skillery.formats.imports import Import, OwnModules
from skillery.formats.manifest import Manifest
from skillery.formats.requirements import (
    LOCK,
    LONGEST,
    LeftOut,
    LeftOutReason,
    above,
    needed_by,
    package_of,
    read_lock,
    sizes_in,
)
from skillery.formats.script_blocks import lock_path
from skillery.formats.scripts import Script, language_of, script_files
from skillery.formats.tools import Tool
from skillery.formats.unfinished_bundle import MAX_CHECKED_BYTES
from skillery.formats.wording import printable
from skillery.publishing.compile_pool import Compilers
from skillery.publishing.package_locks import (
    ImportScan,
    Missing,
    Mode,
    PackageLocks,
    findings_of,
    is_provided,
    reason_of,
)
from skillery.settings.groups import Packages

MOST_MODULES = 50
"""Limit of the modules that are reported, and of the packages that are inferred."""
MOST_TRIES = 8
"""Limit of the attempts to lock the inferred packages. Each attempt omits the packages that made the previous
attempt fail.
"""
MOST_FILES = 1_000
MIB = 1024 * 1024
UNREAD = "the imports of its Python files were not checked: the files take too long to parse"


class SharedSize(NamedTuple):
    """The bytes of the file of a package in a lock. `needed_by` has the package and all packages that need it."""

    size: int
    needed_by: Set[str]


class LockContent(Protocol):
    """A lock of packages, as bytes."""

    @property
    def content(self) -> bytes: ...


class NamedLocks(Protocol):
    """The named environments and their locks: `skillery.environments.named.NamedEnvironments`."""

    @property
    def defined(self) -> Defined: ...

    async def find(self, environment: Named) -> LockContent | None: ...


class Undeclared:
    """Finds undeclared packages. The settings have the default mode of this server and its limits of sizes."""

    def __init__(self, compilers: Compilers, locks: PackageLocks, named: NamedLocks, settings: Packages) -> None:
        self._compilers = compilers
        self._locks = locks
        self._named = named
        self.mode: Mode = settings.infer
        self._limits = settings

    async def scan(self, caller: str, files: Sequence[BundleFile], mode: Mode | None = None) -> ImportScan:
        """Return the modules that Python files of the bundle import and the bundle does not contain.

        `caller` is the name of the identity. Raise Unavailable if no compile worker can be started.
        """
        mode = mode or self.mode
        sources = _sources(files) if mode != "off" else []
        if not sources:
            return ImportScan(mode)
        by_digest = await self._compilers.imports(caller, {file.sha256: file.content for file in sources})
        if by_digest is None:
            return ImportScan(mode, unread=UNREAD)
        imports = [(file.path, imported) for file in sources for imported in by_digest[file.sha256]]
        installed = installed_packages(_skill_md(files))
        return ImportScan(mode, _missing(imports, OwnModules(file.path for file in files), installed))

    async def infer(
        self,
        caller: str,
        files: Sequence[BundleFile],
        declared: Sequence[str],
        mode: Mode | None = None,
        cut_off: str = "",
    ) -> ImportScan:
        """Return the result of `scan`. In mode `lock`, the result also has the inferred package of each module.

        `cut_off` is that of `Locks.make`. If no package can be locked for a module, the result has the reason. Raise
        the errors of `scan`, the errors of `Locks.make` for the declared packages, and PackageIndexUnavailable if the
        index does not answer.
        """
        scan = msgspec.structs.replace(await self.scan(caller, files, mode), cut_off=cut_off)
        if scan.mode != "lock" or not scan.missing:
            return scan
        pins = read_lock(await self._locks.make(declared, caller, cut_off=cut_off)) if declared else ()
        unprovided = [entry for entry in scan.missing if not is_provided(entry, frozenset(pin.name for pin in pins))]
        choices = dict(
            zip(unprovided, await self._locks.choose([entry.providers for entry in unprovided]), strict=True)
        )
        required = {choice.package for entry, choice in choices.items() if choice.package and not entry.optional}
        optional = {choice.package for choice in choices.values() if choice.package} - required
        stated = _stated(files, required | optional)
        dropped = await self._dropped(caller, declared, sorted(required | optional), optional, stated, cut_off)
        left_out = {
            entry.module: dropped[choice.package] for entry, choice in choices.items() if choice.package in dropped
        }
        reasons = {
            entry.module: choice.reason or (left_out[entry.module].detail if entry.module in left_out else "")
            for entry, choice in choices.items()
        }
        return msgspec.structs.replace(
            scan,
            left_out=left_out,
            optional=tuple(sorted(optional - dropped.keys())),
            requirements=stated,
            chosen={entry.module: choice.package for entry, choice in choices.items() if not reasons[entry.module]},
            reasons={module: reason for module, reason in reasons.items() if reason},
        )

    async def findings(self, scan: ImportScan, entrypoint: str, lock: bytes | None) -> tuple[Finding, ...]:
        """Return a finding for each undeclared module, and for each module whose package is inferred.

        A module is undeclared if the packages in `lock` do not provide it. Without a lock, the packages of the default
        environment count.
        """
        if not scan.missing and not scan.unread:
            return ()
        if lock:
            return findings_of(scan, entrypoint, frozenset(pin.name for pin in read_lock(lock)), is_sure=True)
        packages, is_sure = await self._of_default()
        return findings_of(scan, entrypoint, packages, is_sure=is_sure)

    async def scripts(
        self, caller: str, skill: Manifest, files: Sequence[BundleFile], tools: Iterable[Tool], scan: ImportScan | None
    ) -> tuple[Script, ...] | None:
        """Return the scripts of a skill without an entrypoint, each with the modules that its packages do not provide.
        Return None if no file may be a script. `scan` is an earlier result, or None. Raise the errors of `scan`.
        """
        if skill.called or not any(language_of(file.path) for file in files):
            return None
        scripts = await self._compilers.scripts(caller, script_files(files, {tool.script or "" for tool in tools}))
        missing = (scan or await self.scan(caller, files)).missing if scripts else ()
        locks = {file.path: file.content for file in files}
        of_skill = locks.get(LOCK) if skill.runtime and skill.runtime.dependencies else None
        default = frozenset[str]() if of_skill else (await self._of_default())[0]

        def lacks(script: Script) -> tuple[str, ...]:
            lock = locks.get(lock_path(script.path)) or of_skill
            packages = frozenset(pin.name for pin in read_lock(lock)) if lock else default
            of_script = (entry for entry in missing if script.path in entry.required_by)
            return tuple(entry.module for entry in of_script if not is_provided(entry, packages))

        return tuple(msgspec.structs.replace(script, missing=lacks(script)) for script in scripts)

    async def _dropped(
        self,
        caller: str,
        declared: Sequence[str],
        packages: Sequence[str],
        optional: set[str],
        stated: dict[str, str],
        cut_off: str,
    ) -> dict[str, LeftOut]:
        """Return the packages that cannot be locked together with the declared ones, each with the reason.

        `stated` are requirements with extras or bounds. Those that cannot be locked are removed, before their packages
        are dropped.
        If locking fails and the error names a package, this package is dropped. Otherwise, the optional packages are
        dropped first, then all.
        """
        dropped: dict[str, LeftOut] = {}

        def without_stated(names: Collection[str]) -> bool:
            """Remove what is stated about these packages. Return False if nothing is."""
            return bool([stated.pop(name) for name in names if name in stated])

        def drop(names: Iterable[str], reason: LeftOutReason, detail: str) -> None:
            for name in names:
                dropped[name] = LeftOut(name, "optional" if name in optional else "inferred", reason, detail)

        for _ in range(MOST_TRIES):
            remaining = [package for package in packages if package not in dropped]
            if not remaining:
                return dropped
            try:
                requirements = [stated.get(package, package) for package in remaining]
                lock = await self._locks.make([*declared, *requirements], caller, annotated=True, cut_off=cut_off)
                too_large = await asyncio.to_thread(self._too_large, lock, declared, remaining, optional)
                if not too_large:
                    return dropped
                if without_stated(too_large):
                    continue
                for name, detail in too_large.items():
                    drop([name], "too_large", detail)
            except (UnresolvableDependencies, Refused, PackagesNotOffered) as error:
                detail = printable(error.message.rstrip("."), LONGEST)
                at_fault = [package for package in remaining if package == error.data.get("package")]
                reason = reason_of(error)
                # Another package may be at fault only because of a bound: no bound may cost a package.
                doubtful = list(stated) if reason == "conflict" or not at_fault else []
                if without_stated(at_fault) or without_stated(doubtful):
                    continue
                rest = [package for package in remaining if package in optional] or remaining
                drop(at_fault or rest, reason, detail)
        remaining = [package for package in packages if package not in dropped]
        drop(remaining, "conflict", "because too many packages cannot be locked")
        return dropped

    def _too_large(
        self, lock: bytes, declared: Sequence[str], packages: Sequence[str], optional: set[str]
    ) -> dict[str, str]:
        """Return the inferred packages that exceed a limit, each with the detail. The sizes are those of compressed
        files, so an installation would exceed the limit too.
        """
        others = {package_of(requirement) for requirement in declared}
        required = set(packages) - optional
        all_mb, optional_mb = self._limits.max_mb, self._limits.optional_mb
        sizes = shared_sizes(lock)
        left = all_mb * MIB - size_of(sizes, others)
        over = {
            name: f"{size // MIB} MiB or more; the limit is {all_mb} MiB (the setting packages.max_mb)"
            for name, size in too_large_in(sizes, others, required, max(0, left)).items()
        }
        optional = optional.intersection(packages)
        return over | {
            name: f"{size // MIB} MiB or more; the limit is {optional_mb} MiB (the setting packages.optional_mb)"
            for name, size in too_large_in(sizes, others | required, optional, optional_mb * MIB).items()
        }

    async def _of_default(self) -> tuple[frozenset[str], bool]:
        """Return the names of the packages of the default environment, and whether the list is complete.

        Before the environment is locked, only its declared packages are known.
        """
        default = self._named.defined.default
        if default is None:
            return frozenset(), True
        lock = await self._named.find(default)
        if lock is None:
            return frozenset(package_of(dependency) for dependency in default.dependencies), False
        return frozenset(pin.name for pin in read_lock(lock.content)), True


def _skill_md(files: Sequence[BundleFile]) -> str:
    return next((file.content for file in files if file.path == SKILL_MD), b"").decode("utf-8", "replace")


def _stated(files: Sequence[BundleFile], packages: Iterable[str]) -> dict[str, str]:
    """Return the requirements of these inferred packages that have extras or bounds, by package."""
    stated = stated_requirements(_skill_md(files))
    requirements = {package: inferred_requirement(package, stated) for package in packages}
    return {package: requirement for package, requirement in requirements.items() if requirement != package}


def shared_sizes(lock: bytes) -> list[SharedSize]:
    """Return the packages of an annotated lock whose sizes are known."""
    needs = needed_by(lock)
    return [SharedSize(size, above({name}, needs)) for name, size in sizes_in(lock).items()]


def size_of(sizes: Sequence[SharedSize], requirements: Set[str]) -> int:
    """Return the bytes of the files that these requirements of a lock need, as far as they are known."""
    return sum(package.size for package in sizes if not package.needed_by.isdisjoint(requirements))


def too_large_in(sizes: Sequence[SharedSize], others: Set[str], requirements: Set[str], most: int) -> dict[str, int]:
    """Return which `requirements` of a lock to leave out, so that the others add at most `most` bytes.

    Small ones stay first. Packages that the requirements `others` need do not count. The value is the bytes that all
    would have added with this requirement.
    """
    base, kept, left_out = size_of(sizes, others), set[str](), dict[str, int]()
    alone = {name: size_of(sizes, others | {name}) - base for name in requirements}
    for name in sorted(requirements, key=lambda name: (alone[name], name)):
        size = size_of(sizes, others | kept | {name}) - base
        if size > most:
            left_out[name] = size
        else:
            kept.add(name)
    return left_out


def _sources(files: Sequence[BundleFile]) -> list[BundleFile]:
    """Return the Python files to check, in the order of their paths: at most MOST_FILES, and MAX_CHECKED_BYTES
    together.
    """
    scripts = sorted((file for file in files if file.path.endswith(".py")), key=lambda file: file.path)[:MOST_FILES]
    sized = zip(scripts, accumulate(file.size for file in scripts), strict=True)
    return [file for file, size in takewhile(lambda pair: pair[1] <= MAX_CHECKED_BYTES, sized)]


def _missing(imports: Sequence[tuple[str, Import]], own: OwnModules, installed: Set[str]) -> tuple[Missing, ...]:
    """Return one entry for each imported module that is not the skill's own, at most MOST_MODULES entries.

    `installed` are the packages in install lines of SKILL.md.
    """
    places: dict[str, list[tuple[str, Import]]] = {}
    providers: dict[str, Providers] = {}
    for path, imported in imports:
        name = imported.module
        providers.setdefault(name, _providers(name, installed))
        if not own.have(name.partition(".")[0], path, is_known=providers[name].how != "guessed"):
            places.setdefault(name, []).append((path, imported))
    return tuple(_missing_module(name, providers[name], places[name]) for name in list(places)[:MOST_MODULES])


def _providers(module: str, installed: Set[str]) -> Providers:
    """Return the providers of a module. If the table is not sure, an install line of SKILL.md for one of them decides:
    its author has named the package, as in a requirements.txt.
    """
    providers = providers_of(module)
    named = tuple(package for package in providers.packages if package in installed)
    return Providers(named, "known") if providers.how != "known" and len(named) == 1 else providers


def _missing_module(module: str, providers: Providers, places: list[tuple[str, Import]]) -> Missing:
    """Return the entry of a module. `places` are its imports, each with the path of the file."""
    path, first_import = next((place for place in places if not place[1].optional), places[0])
    required = {path: imported.line for path, imported in places if not imported.optional}
    return Missing(module, path, first_import.line, first_import.optional, len(places) - 1, required, providers)
