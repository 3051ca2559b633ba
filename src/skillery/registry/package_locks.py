"""The locked packages of a version, as `describe_skill` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, select

from skillery.backends import Storage
from skillery.contents.store import inline_data, open_content
from skillery.database.tables import environments
from skillery.formats.requirements import LOCK, read_lock
from skillery.registry.files import files_in
from skillery.registry.version_rows import VersionRow

_DECLARES = '"dependencies":'


def lock_json(connection: Connection, storage: Storage, row: VersionRow, *, blocking: bool) -> str:
    """Return `,"lock":{…}` for a version that declares dependencies and has their lock, else "".

    With `blocking`, a lock in the storage is read. Without, `packages` of such a lock is null.
    """
    if _DECLARES not in row.manifest_json or not _runtime(row.manifest_json).get("dependencies"):
        return ""
    file = next((file for file in files_in(connection, row) if file.path == LOCK), None)
    if file is None:
        return ""
    content = _unstored(row) or inline_data(connection, [file.sha256]).get(file.sha256)
    if content is None and blocking:
        with open_content(connection, storage, file.sha256) as stream:
            content = stream.read()
    packages = "null" if content is None else _packages(content, _inferred(row.manifest_json))
    states = msgspec.json.encode(_states(connection, file.sha256)).decode()
    return f',"lock":{{"sha256":"{file.sha256}","packages":{packages},"environments":{states}}}'


def _unstored(row: VersionRow) -> bytes | None:
    """Return the lock of a development version, or None for a stored version."""
    return None if row.unstored is None else row.unstored.files[LOCK].content


def _states(connection: Connection, sha256: str) -> list[dict[str, str | int]]:
    """Return the state of the lock's environment on each server with this database."""
    shown = ("state", "message", "step", "done", "total")
    found = select(*(environments.c[name] for name in shown)).where(environments.c.lock_sha256 == sha256)
    rows = connection.execute(found.order_by(environments.c.server))
    return [_shown(row._mapping) for row in rows]


def _shown(row: Mapping[Any, Any]) -> dict[str, str | int]:
    always = ("state", "step", "done", "total") if row["state"] == "building" else ("state",)
    return {str(name): value for name, value in row.items() if name in always or value}


def _runtime(manifest_json: str) -> dict[str, Any]:
    runtime = msgspec.json.decode(manifest_json).get("runtime")
    return runtime if isinstance(runtime, dict) else {}


def _inferred(manifest_json: str) -> frozenset[str]:
    return frozenset(_runtime(manifest_json).get("inferred", ()))


@lru_cache(maxsize=256)
def _packages(content: bytes, inferred: frozenset[str]) -> str:
    pins = [
        {"name": pin.name, "version": pin.version, **({"inferred": True} if pin.name in inferred else {})}
        for pin in read_lock(content)
    ]
    return msgspec.json.encode(pins).decode()
