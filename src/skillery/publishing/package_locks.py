"""The lock of packages of a bundle with dependencies. A lock in the bundle is verified. A missing lock is made, or
taken from the stored version.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from skillery.environments import check_python
from skillery.environments.dependency_locks import Choice
from skillery.errors import InvalidManifest
from skillery.formats.bundle import SKILL_TOML, Bundle, BundleFile, BundleLimits, with_file
from skillery.formats.import_names import Providers
from skillery.formats.manifest import with_inferred
from skillery.formats.problems import Problem
from skillery.formats.requirements import LOCK, inferred_in, mark_inferred
from skillery.formats.semver import Version
from skillery.formats.toml_lines import with_toml
from skillery.publishing.undeclared_findings import ImportScan

Infer = Callable[[], Awaitable[ImportScan]]
"""Function that finds the undeclared packages of a bundle, and the packages to lock for them."""
Kept = Callable[[str, Version], Awaitable[tuple[str, bytes | None]]]
"""Function that returns the digest and the lock of a stored version: "" and None if there is no such version."""


class PackageLocks(Protocol):
    """Makes and verifies locks of packages: `skillery.environments.Locks`."""

    async def make(self, requirements: Sequence[str], caller: str = "") -> bytes: ...

    async def verify(self, requirements: Sequence[str], lock: bytes, caller: str = "") -> None: ...

    async def choose(self, modules: Sequence[Providers]) -> list[Choice]: ...


async def with_lock(
    kept_of: Kept,
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
    content = next((file.content for file in bundle.files if file.path == LOCK), None)
    if content is not None:
        bundle = _with_inferred(bundle, inferred_in(content))
    if not dependencies_of(bundle) and not any(file.path.endswith(".py") for file in bundle.files):
        return bundle, None
    digest, kept = await kept_of(bundle.manifest.name, bundle.manifest.version)
    if digest:
        same = _with_kept(bundle, kept, limits) if kept is not None and content is None else bundle
        if same.digest == digest or content is None:
            return same, None  # the stored bundle, or a taken version: neither needs a new lock
    if content is None:
        return await _with_made(locks, limits, bundle, caller, infer)
    if dependencies_of(bundle):
        await locks.verify(dependencies_of(bundle), content, caller)
    return bundle, None


async def _with_made(
    locks: PackageLocks, limits: BundleLimits, bundle: Bundle, caller: str, infer: Infer
) -> tuple[Bundle, ImportScan]:
    scan = await infer()
    bundle = _with_inferred(bundle, scan.packages)
    if not dependencies_of(bundle):
        return bundle, scan
    lock = await locks.make(dependencies_of(bundle), caller)
    lock = mark_inferred(lock, scan.packages) if scan.packages else lock
    return with_file(bundle, BundleFile(LOCK, lock), limits), scan


def dependencies_of(bundle: Bundle) -> tuple[str, ...]:
    """Return the declared and inferred dependencies in the manifest of a bundle."""
    return bundle.manifest.runtime.dependencies if bundle.manifest.runtime else ()


def _with_kept(bundle: Bundle, lock: bytes, limits: BundleLimits) -> Bundle:
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
    found = with_toml(msgspec.convert(problems, list[Problem]), skill_toml)
    first = next((one for one in found if one.file is not None and one.line is not None), None)
    place = {"file": first.file, "line": first.line} if first is not None else {}
    return {"problems": [one.as_data() for one in found], **place}


def lock_of(bundle: Bundle) -> bytes | None:
    """Return the lock of packages of a bundle, or None if the bundle has no dependencies."""
    if not dependencies_of(bundle):
        return None
    return next((file.content for file in bundle.files if file.path == LOCK), None)
