"""read_skill_file, and the files of a version."""

from __future__ import annotations

import base64
import difflib
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select

from skillery.backends import Identity, Storage
from skillery.database import Statement
from skillery.errors import FileNotInSkill
from skillery.formats.version_spec import VersionSpec
from skillery.registry.resolving import VersionRow, resolve
from skillery.tables import objects, skill_files


class FileRow(NamedTuple):
    path: str
    sha256: str
    size_bytes: int
    executable: bool


_FILES = Statement(
    select(skill_files.c.path, skill_files.c.sha256, skill_files.c.size_bytes, skill_files.c.executable)
    .where(skill_files.c.version_id == bindparam("version_id"))
    .order_by(skill_files.c.path)
)
_FILE = Statement(
    select(skill_files.c.sha256, objects.c.data)
    .join_from(skill_files, objects, objects.c.sha256 == skill_files.c.sha256)
    .where(skill_files.c.version_id == bindparam("version_id"), skill_files.c.path == bindparam("path"))
)


def files_of(connection: Connection, version_id: int) -> list[FileRow]:
    """Every file of a version, sorted by path."""
    return [
        FileRow(path, sha256, size, bool(mode))
        for path, sha256, size, mode in _FILES.rows(connection, version_id=version_id)
    ]


def read_skill_file(
    connection: Connection, identity: Identity, storage: Storage, *, name: str, spec: VersionSpec, path: str
) -> dict[str, str]:
    """`content` and its `encoding`: `utf-8`, or `base64` where the file is not UTF-8 text.

    Raises SkillNotFound, VersionNotFound, FileNotInSkill. A file over 64 KiB is read from the storage.
    """
    row = resolve(connection, identity, name, spec)
    return _as_answered(read_file(connection, storage, row, path))


def read_inline_file(
    connection: Connection, identity: Identity, *, name: str, spec: VersionSpec, path: str
) -> dict[str, str] | None:
    """As `read_skill_file` where the file is in the database, which most are; None where it is not, or is not there at
    all: that takes longer. Raises SkillNotFound, VersionNotFound."""
    row = resolve(connection, identity, name, spec)
    found = _FILE.rows(connection, version_id=row.version_id, path=path)
    return None if not found or found[0][1] is None else _as_answered(bytes(found[0][1]))


def _as_answered(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode("utf-8"), "encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"content": base64.b64encode(content).decode(), "encoding": "base64"}


def check_file(connection: Connection, version: VersionRow, path: str) -> None:
    """Raises FileNotInSkill, with the nearest names that there are."""
    if not _FILE.rows(connection, version_id=version.version_id, path=path):
        raise _not_found(connection, version, path)


def read_file(connection: Connection, storage: Storage, version: VersionRow, path: str) -> bytes:
    found = _FILE.rows(connection, version_id=version.version_id, path=path)
    if not found:
        raise _not_found(connection, version, path)
    return _content(storage, *found[0])


def content_of(connection: Connection, storage: Storage, sha256: str) -> bytes:
    """Of a file of a version that is there."""
    return _content(storage, sha256, connection.scalar(select(objects.c.data).where(objects.c.sha256 == sha256)))


def _content(storage: Storage, sha256: str, data: bytes | None) -> bytes:
    if data is not None:
        return bytes(data)
    with storage.open(sha256) as stream:
        return stream.read()


def _not_found(connection: Connection, version: VersionRow, path: str) -> FileNotInSkill:
    paths = [file.path for file in files_of(connection, version.version_id)]
    near = difflib.get_close_matches(path, paths, n=3, cutoff=0.4)
    shown = near or paths[:10]
    return FileNotInSkill(
        f"'{version.name}' {version.version} has no file '{path}'",
        hint=f"It has {', '.join(shown)}{' and more' if len(paths) > len(shown) else ''}.",
        name=version.name,
        version=version.version,
        path=path,
    )
