"""The skills that a new version requires: their choice, and their packages."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection

from skillery.backends import Identity, Storage
from skillery.environments.dependency_locks import lock_of_version
from skillery.errors import RequiresPackages
from skillery.formats.bundle import Bundle
from skillery.formats.requirements import Pin, clash, read_lock
from skillery.formats.semver import Version
from skillery.publishing.package_locks import lock_of
from skillery.registry.required_choice import choose
from skillery.registry.requires import Required, declared_by
from skillery.registry.visibility import Visibility


def required_by(
    connection: Connection, identity: Identity, storage: Storage, bundle: Bundle, visibility: Visibility
) -> tuple[Required, ...]:
    """Return the versions that a new bundle requires. `visibility` is the one of its skill.

    Raise the errors of `choose`. Raise RequiresPackages if a run of the skill would need two versions of a package.
    """
    manifest = bundle.manifest
    if not manifest.requires:
        return ()
    closure = choose(connection, identity, manifest.name, manifest.requires.items(), visibility)
    lock = lock_of(bundle)
    pins = {f"'{manifest.name}'": read_lock(lock)} if lock is not None else {}
    conflict = clash(pins | dict(_pins(connection, storage, closure)))
    if conflict is not None:
        package, owner, version, other_owner, other_version = conflict
        raise RequiresPackages(
            f"{owner} needs {package} {version} and {other_owner} needs {package} {other_version}: a run can have only "
            "one version of a package",
            hint="Declare versions of the package that fit both, and publish again.",
            package=package,
        )
    return tuple(closure)


def _pins(connection: Connection, storage: Storage, closure: list[Required]) -> Iterator[tuple[str, tuple[Pin, ...]]]:
    """Yield the packages of the required skills that the run of the new version imports, by their owner."""
    for _, row in closure:
        declared = declared_by(row)
        if declared.has_packages and not declared.is_called:
            _, lock = lock_of_version(connection, storage, row.name, Version.parse(row.version))
            if lock is not None:
                yield f"'{row.name}' {row.version}", read_lock(lock)
