"""The locked packages of a version, of Python and of npm, as `describe_skill` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from sqlalchemy import Connection, select

from skillery.backends import Storage
from skillery.contents.store import inline_data, open_content
from skillery.database.tables import environments
from skillery.formats.npm import NPM_LOCK, npm_lock_in
from skillery.formats.requirements import LOCK, LeftOut, left_out_in, read_lock
from skillery.registry.version_rows import VersionRow
from skillery.skills.files import files_in

_LARGE = Meta(description="null below detail 'full' if the lock is large")
_NOT_LOCKED = Meta(description="Packages that could not be locked")


class SkillPackage(Struct, frozen=True):
    """A package in the lock of a skill."""

    name: str
    version: str
    inferred: bool | UnsetType = UNSET


class EnvironmentState(Struct, frozen=True):
    """The state of an environment on one server."""

    state: str
    message: str | UnsetType = UNSET
    step: Annotated[str | UnsetType, Meta(description="While it is being built")] = UNSET
    done: int | UnsetType = UNSET
    total: int | UnsetType = UNSET


class NpmLockOfSkill(Struct, frozen=True):
    """The locked npm packages of a skill."""

    sha256: str
    packages: Annotated[list[SkillPackage] | None, _LARGE]
    environments: list[EnvironmentState]
    left_out: Annotated[list[LeftOut] | UnsetType, _NOT_LOCKED] = UNSET


class SkillLock(Struct, frozen=True):
    """The locked packages of a skill. Without Python packages, it has only `npm`."""

    sha256: str | UnsetType = UNSET
    packages: Annotated[list[SkillPackage] | UnsetType | None, _LARGE] = UNSET
    environments: list[EnvironmentState] | UnsetType = UNSET
    left_out: Annotated[list[LeftOut] | UnsetType, _NOT_LOCKED] = UNSET
    npm: NpmLockOfSkill | UnsetType = UNSET


_DECLARES = '"dependencies":'


def lock_json(
    connection: Connection, storage: Storage, row: VersionRow, npm_sha256: str | None, *, blocking: bool
) -> str:
    """Return `,"lock":{…}` for a version with locked packages, else "". `npm_sha256` is the digest of its `npm.lock`.

    With `blocking`, a lock in the storage is read. Without, `packages` of such a lock is null.
    """
    fields = []
    if _DECLARES in row.manifest_json and _runtime(row.manifest_json).get("dependencies"):
        file = next((file for file in files_in(connection, row) if file.path == LOCK), None)
        if file is not None:
            content = _content(connection, storage, row, LOCK, file.sha256, blocking=blocking)
            packages = '"packages":null' if content is None else _packages(content, _inferred(row.manifest_json))
            fields.append(_lock_fields(connection, file.sha256, packages))
    if npm_sha256 is not None:
        content = _content(connection, storage, row, NPM_LOCK, npm_sha256, blocking=blocking)
        npm_packages = '"packages":null' if content is None else _npm_packages(content)
        if npm_packages is not None:
            fields.append(f'"npm":{{{_lock_fields(connection, npm_sha256, npm_packages)}}}')
    return f',"lock":{{{",".join(fields)}}}' if fields else ""


def _content(
    connection: Connection, storage: Storage, row: VersionRow, path: str, sha256: str, *, blocking: bool
) -> bytes | None:
    """Return the content of a lock. Without `blocking`, return None for a content in the storage."""
    if row.unstored is not None:
        return row.unstored.files[path].content
    content = inline_data(connection, [sha256]).get(sha256)
    if content is None and blocking:
        with open_content(connection, storage, sha256) as stream:
            content = stream.read()
    return content


def _lock_fields(connection: Connection, sha256: str, packages: str) -> str:
    return f'"sha256":"{sha256}",{packages},"environments":{_json(_states(connection, sha256))}'


def _states(connection: Connection, sha256: str) -> list[dict[str, str | int]]:
    """Return the state of the lock's environment on each server with this database."""
    shown = ("state", "message", "step", "done", "total")
    states = select(*(environments.c[name] for name in shown)).where(environments.c.lock_sha256 == sha256)
    rows = connection.execute(states.order_by(environments.c.server))
    return [_shown(row._mapping) for row in rows]


def _shown(row: Mapping[Any, Any]) -> dict[str, str | int]:
    """Return the fields of a row that are not empty. The progress of a build also has its fields that are 0 or ""."""
    always = ("state", "step", "done", "total") if row["state"] == "building" else ("state",)
    return {str(name): value for name, value in row.items() if name in always or value}


def _runtime(manifest_json: str) -> dict[str, Any]:
    runtime = msgspec.json.decode(manifest_json).get("runtime")
    return runtime if isinstance(runtime, dict) else {}


def _inferred(manifest_json: str) -> frozenset[str]:
    return frozenset(_runtime(manifest_json).get("inferred", ()))


@lru_cache(maxsize=256)
def _packages(content: bytes, inferred: frozenset[str]) -> str:
    """Return the JSON fields `packages` and, if packages are left out, `left_out`."""
    pins = [
        {"name": pin.name, "version": pin.version, **({"inferred": True} if pin.name in inferred else {})}
        for pin in read_lock(content)
    ]
    left_out = left_out_in(content)
    return _json({"packages": pins, "left_out": left_out} if left_out else {"packages": pins})[1:-1]


@lru_cache(maxsize=256)
def _npm_packages(content: bytes) -> str | None:
    """Return the JSON fields of `_packages` for a lock of npm, or None if the content is an ordinary file."""
    lock = npm_lock_in({NPM_LOCK: content})
    if lock is None:
        return None
    inferred = {package.pin: package.inferred for package in lock.packages}
    packages = [SkillPackage(pin.name, pin.version, inferred[pin] or UNSET) for pin in inferred]
    fields = {"packages": packages, **({"left_out": lock.left_out} if lock.left_out else {})}
    return _json(fields)[1:-1]


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
