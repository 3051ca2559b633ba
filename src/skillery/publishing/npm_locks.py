"""The lock of npm packages of a bundle: verified, taken from the stored version, or made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple, NoReturn

from skillery.errors import InvalidBundle, PackagesNotOffered, Refused, UnresolvableDependencies
from skillery.formats.bundle import Bundle, BundleFile, BundleLimits, with_file
from skillery.formats.import_names import is_widely_used
from skillery.formats.npm import (
    NPM_LOCK,
    SOURCES,
    NpmLock,
    NpmNeeds,
    is_npm_lock,
    read_npm_lock,
    read_npm_needs,
    split,
    write_npm_lock,
)
from skillery.formats.requirements import InvalidLock, LeftOut
from skillery.formats.wording import Problem, printable, raise_problems
from skillery.publishing.package_locks import PackageLocks, StoredLockOf, reason_of

MOST_TRIES = 8
"""Limit of the attempts to lock packages. Each attempt omits the packages that made the previous attempt fail."""


class NpmRules(NamedTuple):
    """The rules of a new lock."""

    infers: bool = False
    """Whether inferred packages are locked, as far as possible."""
    lenient: bool = False
    """Whether packages of package.json that cannot be locked are left out."""
    cut_off: str = ""
    """The date after which new versions are ignored, or ""."""


async def with_npm_lock(
    stored_lock_of: StoredLockOf,
    locks: PackageLocks,
    limits: BundleLimits,
    bundle: Bundle,
    caller: str,
    rules: NpmRules,
) -> Bundle:
    """Return the bundle with its `npm.lock`, if its files need npm packages.

    The first rule that matches applies:

    - A bundle without declared packages and files that can import packages gets no lock.
    - If the version exists and the bundle contains no lock, the lock of the version is used, so that the same files
      give the same bundle.
    - If exactly this bundle is stored, its lock is not verified again.
    - A lock in the bundle is verified.
    - Without a registry, only packages that skill.toml declares are an error.
    - Otherwise a new lock is made, by the rules.

    Raise InvalidBundle if a lock is not valid. Raise the errors of `PackageLocks.make_npm`.
    """
    files = {file.path: file.content for file in bundle.files}
    declared = bundle.manifest.runtime.npm if bundle.manifest.runtime else ()
    content = files.get(NPM_LOCK)
    if content is None and not declared and not any(path.endswith(SOURCES) for path in files):
        return bundle
    digest, stored = await stored_lock_of(bundle.manifest.name, bundle.manifest.version, NPM_LOCK)
    if digest and content is None:
        is_lock = stored is not None and is_npm_lock(stored)
        return with_file(bundle, BundleFile(NPM_LOCK, stored or b""), limits) if is_lock else bundle
    if content is not None:
        if bundle.digest != digest and is_npm_lock(content):
            needs = await asyncio.to_thread(read_npm_needs, files, declared, _is_known(locks), infers=False)
            await asyncio.to_thread(_verify, locks, content, needs.declared)
        elif declared and not is_npm_lock(content):
            _refuse("is not a lock, but the manifest declares npm packages")
        return bundle
    if not locks.npm.are_there and not declared:
        return bundle
    needs = await asyncio.to_thread(read_npm_needs, files, declared, _is_known(locks), infers=rules.infers)
    lock, left_out = await _locked(locks, needs, caller, rules)
    if left_out := (*needs.left_out, *left_out):
        locked = read_npm_lock(lock) if lock else NpmLock(1, (), ())
        lock = write_npm_lock(locked.requirements, locked.packages, left_out)
    return with_file(bundle, BundleFile(NPM_LOCK, lock), limits) if lock else bundle


def _is_known(locks: PackageLocks) -> Callable[[str], bool]:
    """Return whether an inferred package may have a name. Anyone can register a name, so others are not installed."""
    return lambda name: is_widely_used(name) or any(fnmatchcase(name, pattern) for pattern in locks.npm.allowed)


async def inferred_npm(locks: PackageLocks, files: Sequence[BundleFile], declared: Sequence[str]) -> tuple[str, ...]:
    """Return the inferred npm packages of a bundle, with those that cannot be locked. `declared` is `runtime.npm`."""
    if not locks.npm.are_there or not any(file.path.endswith(SOURCES) for file in files):
        return ()
    contents = {file.path: file.content for file in files}
    return (await asyncio.to_thread(read_npm_needs, contents, declared, _is_known(locks), infers=True)).inferred


async def _locked(
    locks: PackageLocks, needs: NpmNeeds, caller: str, rules: NpmRules
) -> tuple[bytes, Sequence[LeftOut]]:
    """Return the lock, or b"", and the packages that are left out."""
    of_files = set(map(_name, needs.of_files))
    lower = {*map(_name, needs.inferred), *(of_files if rules.lenient else ())}
    left_out = dict[str, LeftOut]()
    for _ in range(MOST_TRIES):
        requirements = [text for text in needs.all if _name(text) not in left_out]
        if not requirements:
            break
        inferred = lower.difference(left_out)
        try:
            lock = await locks.make_npm(
                requirements, caller, inferred=inferred, guide=needs.guide, cut_off=rules.cut_off
            )
            return lock, [*left_out.values()]
        except (UnresolvableDependencies, Refused, PackagesNotOffered) as error:
            if not inferred:
                raise
            package = str(error.data.get("package", ""))
            if package and package not in lower and package in map(_name, requirements):
                raise
            dropped = {package} if package in inferred else inferred
            detail = printable(error.message.rstrip("."), 200)
            for name in sorted(dropped):
                tier: Literal["declared", "inferred"] = "declared" if name in of_files else "inferred"
                left_out[name] = LeftOut(name, tier, reason_of(error), detail)
    return b"", [*left_out.values()]


def _name(requirement: str) -> str:
    return split(requirement)[0]


def _verify(locks: PackageLocks, content: bytes, declared: tuple[str, ...]) -> None:
    """Raise InvalidBundle if the lock is not valid, or does not have the declared packages. Blocking.

    The registry and the hashes are checked when the packages are installed.
    """
    try:
        lock = read_npm_lock(content)
    except InvalidLock as error:
        _refuse(error.message)
    paths = {package.path for package in lock.packages}
    missing = next((name for name in map(_name, declared) if name not in paths), None)
    if missing is not None:
        _refuse(f"has no package {missing}, which the manifest declares")
    locks.check_npm(lock)


def _refuse(message: str) -> NoReturn:
    raise_problems(
        InvalidBundle,
        [Problem(f"{NPM_LOCK} {message}", path=NPM_LOCK, file=NPM_LOCK)],
        hint=f"Omit {NPM_LOCK}: the packages are then locked when the version is published.",
    )
