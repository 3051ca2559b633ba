"""The lock of packages of a bundle with dependencies.

A lock in the bundle is verified. A missing lock is made, or taken from the stored version. The module also makes the
findings about undeclared packages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, Protocol

import msgspec
from packaging.utils import canonicalize_name

from skillery.backends import Finding
from skillery.environments.definitions import check_python
from skillery.environments.sources import Choice, NpmSources
from skillery.errors import InvalidManifest, PackagesNotOffered, Refused, UnresolvableDependencies
from skillery.formats.bundle import SKILL_TOML, Bundle, BundleFile, BundleLimits, with_file
from skillery.formats.import_names import Providers, is_known_package
from skillery.formats.manifest import with_inferred
from skillery.formats.npm import NPM_LOCK, NpmLock, npm_lock_in
from skillery.formats.requirements import (
    LOCK,
    InvalidLock,
    LeftOut,
    LeftOutReason,
    Pin,
    Tiers,
    inferred_in,
    mark_inferred,
    mark_left_out,
    mark_tiers,
    package_of,
    read_lock,
)
from skillery.formats.script_blocks import script_locks
from skillery.formats.semver import Version
from skillery.formats.toml_lines import with_toml
from skillery.formats.wording import Problem

# -- Findings about undeclared packages --------------------------------------------------------------------------------


INFER = ", or import the skill with --packages infer"
"""Remedy for imported skills. The author of a skill declares the package."""
Mode = Literal["off", "suggest", "lock"]
"""Handling of undeclared packages: no check, a finding for each, or a lock that contains them."""

UNDECLARED, INFERRED, LEFT_OUT = "undeclared_package", "inferred_package", "package_left_out"
"""The rules of findings about undeclared packages, inferred packages, and those that are left out of the lock."""


class Missing(msgspec.Struct, frozen=True, eq=False):
    """A module that Python files of a bundle import and that the bundle does not contain.

    `file` and `line` are the place of the first required import, or of the first optional one. `more` is the number of
    other imports.
    """

    module: str
    file: str
    line: int
    optional: bool
    more: int
    required_by: Mapping[str, int]
    """The files that cannot be imported without the module, each with the line of the import."""
    providers: Providers


class ImportScan(msgspec.Struct, frozen=True):
    """The modules that a bundle imports and does not contain, and the packages that provide them."""

    mode: Mode
    missing: tuple[Missing, ...] = ()
    chosen: Mapping[str, str] = {}
    """The inferred package of each module."""
    reasons: Mapping[str, str] = {}
    """The reason for each module without an inferred package."""
    left_out: Mapping[str, LeftOut] = {}
    """The package of each module that is left out of the lock."""
    optional: tuple[str, ...] = ()
    """The inferred packages of optional imports alone, sorted."""
    requirements: Mapping[str, str] = {}
    """The requirement of each inferred package with extras or bounds. The manifest has its name only."""
    cut_off: str = ""
    """The date after which new packages are ignored, or ""."""
    unread: str = ""
    """The reason if files were not checked, else ""."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The inferred packages, which are locked together with the declared packages."""
        return tuple(sorted(set(self.chosen.values())))


_REASONS: Mapping[str, LeftOutReason] = {
    "unknown_package": "unknown_package",
    "no_wheel": "no_wheel",
    "build_failed": "build_failed",
    "damaged": "unavailable",
    "yanked": "unavailable",
}
"""The reason for a left-out package by the reason why it could not be locked. Any other reason is a conflict."""


def reason_of(error: UnresolvableDependencies | Refused | PackagesNotOffered) -> LeftOutReason:
    """Return the reason for packages that are left out because locking them raised `error`."""
    if isinstance(error, Refused):
        return "denied"
    if isinstance(error, PackagesNotOffered):
        return "unavailable"
    return _REASONS.get(str(error.data.get("reason")), "conflict")


def is_provided(missing: Missing, packages: frozenset[str]) -> bool:
    """Return whether one of the packages provides the module.

    If no known package provides the module, a package whose modules are not known counts as its provider.
    """
    if packages & {*missing.providers.packages, canonicalize_name(missing.module.partition(".")[0])}:
        return True
    return missing.providers.how == "guessed" and not all(map(is_known_package, packages))


def findings_of(scan: ImportScan, entrypoint: str, packages: frozenset[str], *, is_sure: bool) -> tuple[Finding, ...]:
    """Return the findings about undeclared packages. `packages` are the packages in the skill's runs; `is_sure` says
    whether this list is complete.

    If an import of the entrypoint certainly fails, the finding is an error, else a warning. A module that `packages`
    provide (`is_provided`) has no finding, unless its package is inferred.
    """
    is_sure = is_sure and all(map(is_known_package, packages))
    return tuple(_findings(scan, entrypoint, packages, is_sure))


def _findings(scan: ImportScan, entrypoint: str, packages: frozenset[str], is_sure: bool) -> Iterator[Finding]:
    """Yield the findings of `findings_of` in the order of the modules."""
    for missing in scan.missing:
        package = scan.chosen.get(missing.module)
        if package is not None and package in packages:
            message = f"imports {missing.module}{_more(missing)}: the package {package} is inferred and locked"
            yield Finding(INFERRED, message, "info", missing.file, missing.line)
        elif not is_provided(missing, packages):
            line = missing.required_by.get(entrypoint) if is_sure else None
            left_out = scan.left_out.get(missing.module)
            if line is None and left_out is not None:
                message = f"imports {missing.module}{_more(missing)}: {left_out.name} is left out, {left_out.detail}"
                yield Finding(LEFT_OUT, message, "info", missing.file, missing.line)
            elif line is None:
                yield Finding(UNDECLARED, _message(missing, scan), "warning", missing.file, missing.line)
            else:
                yield Finding(UNDECLARED, _message(missing, scan).removesuffix(INFER), "error", entrypoint, line)
    if scan.unread:
        yield Finding(UNDECLARED, scan.unread, "warning")


def _message(missing: Missing, scan: ImportScan) -> str:
    """Return the message about an undeclared module, with the remedy."""
    begin = f"imports {missing.module}{' (optional)' if missing.optional else ''}{_more(missing)}"
    reason = scan.reasons.get(missing.module)
    if reason is not None:
        return f"{begin}, which is not locked: {reason}"
    providers = missing.providers
    if providers.how == "guessed":
        remedy = "add its package to runtime.dependencies, or the module to the skill"
        return f"{begin}, which no known package provides: {remedy}"
    if providers.how == "ambiguous":
        return f"{begin}, which is ambiguous: {providers} provide it; add the right one to runtime.dependencies"
    remedy = f"add '{providers.packages[0]}' to runtime.dependencies{INFER}"
    return f"{begin}, but no package for it is declared: {remedy}"


def _more(missing: Missing) -> str:
    return f" (and {missing.more} more file{'s' * (missing.more > 1)})" if missing.more else ""


Infer = Callable[[], Awaitable[ImportScan]]
"""Function that finds the undeclared packages of a bundle, and the packages to lock for them."""


class StoredLockOf(Protocol):
    """Function that returns the digest and the lock of a stored version: "" and None if there is no such version."""

    async def __call__(self, name: str, version: Version, path: str = LOCK) -> tuple[str, bytes | None]: ...


class PackageLocks(Protocol):
    """The part of `skillery.environments.dependency_locks.Locks` that publishing uses."""

    async def make(
        self,
        requirements: Sequence[str],
        caller: str = "",
        *,
        annotated: bool = False,
        cut_off: str = "",
        python: str = "",
    ) -> bytes: ...

    def check(self, pins: Sequence[Pin]) -> None: ...

    async def verify(self, requirements: Sequence[str], lock: bytes, caller: str = "") -> None: ...

    async def choose(self, modules: Sequence[Providers]) -> list[Choice]: ...

    async def make_npm(
        self,
        requirements: Sequence[str],
        caller: str = "",
        *,
        inferred: Collection[str] = (),
        guide: Mapping[str, str] = {},
        cut_off: str = "",
    ) -> bytes: ...

    def check_npm(self, lock: NpmLock) -> None: ...

    @property
    def npm(self) -> NpmSources: ...


async def with_lock(
    stored_lock_of: StoredLockOf,
    locks: PackageLocks,
    limits: BundleLimits,
    bundle: Bundle,
    caller: str,
    infer: Infer,
) -> tuple[Bundle, ImportScan | None]:
    """Return the bundle with its `requirements.lock`, and the result of `infer` (None if `infer` was not called).

    The first rule that matches applies:

    - A bundle without dependencies and Python files gets no lock.
    - If the version exists and the bundle contains no lock, the lock of the version is used, so that the same files
      give the same bundle.
    - If exactly this bundle is stored, its lock is not verified again.
    - If the bundle contains a lock, the lock is verified. Without dependencies, the file is not a lock.
    - Otherwise `infer` is called, and inferred packages become dependencies in the manifest. If there are dependencies
      then, a new lock is made.

    Raise InvalidManifest if the skill needs another Python than this server has. Raise the errors of `Locks.make`,
    `Locks.verify` and `infer` if the lock cannot be made or verified.
    """
    check_python(bundle.manifest.runtime.requires_python if bundle.manifest.runtime else "")
    for _, pins in _of_scripts(bundle):
        locks.check(pins)
    content = next((file.content for file in bundle.files if file.path == LOCK), None)
    if content is not None:
        bundle = _with_inferred(bundle, inferred_in(content))
    if not dependencies_of(bundle) and not any(file.path.endswith(".py") for file in bundle.files):
        return bundle, None
    digest, stored_lock = await stored_lock_of(bundle.manifest.name, bundle.manifest.version)
    if digest:
        if stored_lock is not None and content is None:
            bundle = _with_stored(bundle, stored_lock, limits)
        if bundle.digest == digest or content is None:
            return bundle, None  # the stored bundle, or a taken version: neither needs a new lock
    if content is None:
        return await _with_new(locks, limits, bundle, caller, infer)
    if dependencies_of(bundle):
        await locks.verify(dependencies_of(bundle), content, caller)
    return bundle, None


async def _with_new(
    locks: PackageLocks, limits: BundleLimits, bundle: Bundle, caller: str, infer: Infer
) -> tuple[Bundle, ImportScan]:
    """Return the bundle with a new lock, and the scan with the inferred packages."""
    scan = await infer()
    bundle = _with_inferred(bundle, scan.packages)
    if not dependencies_of(bundle):
        return bundle, scan
    requirements = [scan.requirements.get(dependency, dependency) for dependency in dependencies_of(bundle)]
    lock = await locks.make(requirements, caller, annotated=bool(scan.packages), cut_off=scan.cut_off)
    if scan.packages:
        declared = {package_of(dependency) for dependency in dependencies_of(bundle)} - set(scan.packages)
        lock = mark_tiers(lock, Tiers(tuple(sorted(declared)), scan.optional))
    # By name, because several modules may need the same package.
    lock = mark_left_out(lock, {entry.name: entry for entry in scan.left_out.values()}.values())
    lock = mark_inferred(lock, scan.packages) if scan.packages else lock
    return with_file(bundle, BundleFile(LOCK, lock), limits), scan


def dependencies_of(bundle: Bundle) -> tuple[str, ...]:
    """Return the declared and inferred dependencies in the manifest of a bundle."""
    return bundle.manifest.runtime.dependencies if bundle.manifest.runtime else ()


def _with_stored(bundle: Bundle, lock: bytes, limits: BundleLimits) -> Bundle:
    """Return the bundle with `lock`, the lock of packages of its stored version.

    If there are no dependencies and `lock` names no inferred package, `lock` is an ordinary file and is not added.
    """
    bundle = _with_inferred(bundle, inferred_in(lock))
    return with_file(bundle, BundleFile(LOCK, lock), limits) if dependencies_of(bundle) else bundle


def _with_inferred(bundle: Bundle, packages: Sequence[str]) -> Bundle:
    return msgspec.structs.replace(bundle, manifest=with_inferred(bundle.manifest, packages))


@contextmanager
def with_toml_lines(files: Sequence[BundleFile]) -> Iterator[None]:
    """Context manager: if InvalidManifest is raised, add the line in the given skill.toml to its problems."""
    try:
        yield
    except InvalidManifest as error:
        skill_toml = next((file for file in files if file.path == SKILL_TOML), None)
        if skill_toml is not None:
            text = skill_toml.content.decode("utf-8", "replace")
            error.data |= _located(error.data.get("problems", []), text)
        raise


def _located(problems: Any, skill_toml: str) -> dict[str, object]:
    located = with_toml(msgspec.convert(problems, list[Problem]), skill_toml)
    first_located = next(
        (problem for problem in located if problem.file is not None and problem.line is not None), None
    )
    location = {"file": first_located.file, "line": first_located.line} if first_located is not None else {}
    return {"problems": [problem.as_data() for problem in located], **location}


def locks_of(bundle: Bundle) -> Iterator[bytes]:
    """Yield the locks of a bundle, of packages of Python and of npm."""
    if (lock := lock_of(bundle)) is not None:
        yield lock
    yield from (lock for lock, _ in _of_scripts(bundle))
    files = {file.path: file.content for file in bundle.files}
    npm_lock = npm_lock_in(files)
    if npm_lock is not None and npm_lock.packages:
        yield files[NPM_LOCK]


def _of_scripts(bundle: Bundle) -> Iterator[tuple[bytes, tuple[Pin, ...]]]:
    """Yield the locks of scripts, with their packages. A file that cannot be read as a lock is an ordinary file."""
    files = {file.path: file.content for file in bundle.files}
    for path in script_locks(files):
        with suppress(InvalidLock):
            yield files[path], read_lock(files[path])


def lock_of(bundle: Bundle) -> bytes | None:
    """Return the lock of packages of a bundle, or None if the bundle has no dependencies."""
    if not dependencies_of(bundle):
        return None
    return next((file.content for file in bundle.files if file.path == LOCK), None)
