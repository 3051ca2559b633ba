"""read_skill_file, and other queries for the files of a version."""

from __future__ import annotations

import base64
import io
from functools import partial
from typing import Annotated, BinaryIO, Literal, NamedTuple
from unicodedata import normalize

import msgspec
from sqlalchemy import Connection, bindparam, select

from skillery.backends import Identity, Storage
from skillery.database import Statement, select_row
from skillery.database.tables import objects, skill_files
from skillery.errors import FileNotInSkill
from skillery.formats.json_pieces import JsonPieces, content_pieces
from skillery.formats.paths import parse_path
from skillery.formats.version_spec import VersionSpec, parse_named
from skillery.formats.wording import near_words
from skillery.method import Json, Method, Params, about
from skillery.registry.resolution import resolve
from skillery.registry.uses import ContentParts
from skillery.registry.version_rows import VersionRow


class SkillFileContent(msgspec.Struct, frozen=True):
    """The content of a file of a skill."""

    content: str
    encoding: Literal["utf-8", "base64"]


class FileRow(NamedTuple):
    path: str
    sha256: str
    size_bytes: int
    executable: bool


class FoundFile(NamedTuple):
    """A file of a version."""

    version: VersionRow
    path: str
    sha256: str
    size_bytes: int
    data: bytes | None
    """The content, or None if the storage holds the content."""

    def open(self, storage: Storage) -> BinaryIO:
        """Open the content. Blocking."""
        return _open(storage, self.sha256, self.data)


_FILES = Statement(
    select_row(FileRow, skill_files)
    .where(skill_files.c.version_id == bindparam("version_id"))
    .order_by(skill_files.c.path)
)
_FILE = Statement(
    select(skill_files.c.sha256, objects.c.data, objects.c.size_bytes)
    .join_from(skill_files, objects, objects.c.sha256 == skill_files.c.sha256)
    .where(skill_files.c.version_id == bindparam("version_id"), skill_files.c.path == bindparam("path"))
)


def files_in(connection: Connection, version: VersionRow) -> list[FileRow]:
    """Return every file of a version, sorted by path."""
    if version.unstored is None:
        return files_of(connection, version.version_id)
    return [FileRow(file.path, file.sha256, file.size, file.executable) for file in version.unstored.files.values()]


def files_of(connection: Connection, version_id: int) -> list[FileRow]:
    """Return every file of a stored version, sorted by path."""
    return [
        FileRow(path, sha256, size, bool(mode))
        for path, sha256, size, mode in _FILES.rows(connection, version_id=version_id)
    ]


def find_file(connection: Connection, identity: Identity, *, name: str, spec: VersionSpec, path: str) -> FoundFile:
    """Return a file of a version, without the content of a large file. Raise the errors of `read_skill_file`."""
    row = resolve(connection, identity, name, spec)
    file = _find(connection, row, path)
    return FoundFile(row, path, file.sha256, file.size_bytes, file.data)


def read_stored_file(
    connection: Connection,
    identity: Identity,
    storage: Storage,
    *,
    name: str,
    spec: VersionSpec,
    path: str,
) -> tuple[int, JsonPieces]:
    """Return the id of the version, and `content` and `encoding` of a file as JSON: `utf-8` for UTF-8 text, else
    `base64`.

    A file over 64 KiB is read from the storage. Raise SkillNotFound, VersionNotFound or LabelNotFound if the identity
    sees no such version. Raise FileNotInSkill if the version has no such file, and the errors of `content_pieces`.
    """
    row = resolve(connection, identity, name, spec)
    file = _find(connection, row, path)
    content, encoding = content_pieces(partial(_open, storage, file.sha256, file.data), file.size_bytes)
    return row.version_id, JsonPieces([b'{"content":', *content, b',"encoding":"%s"}' % encoding.encode()])


def read_inline_file(
    connection: Connection, identity: Identity, *, name: str, spec: VersionSpec, path: str
) -> tuple[int, SkillFileContent] | None:
    """Return the id of the version and the answer of `read_skill_file` if the content is in the database, as for most
    files, else None.

    With None, the caller uses `read_skill_file`: the file is in the storage or does not exist. Raise SkillNotFound,
    VersionNotFound or LabelNotFound if the identity sees no such version.
    """
    row = resolve(connection, identity, name, spec)
    file = _find_or_none(connection, row, path)
    return None if file is None or file.data is None else (row.version_id, _as_answered(file.data))


def _as_answered(content: bytes) -> SkillFileContent:
    try:
        return SkillFileContent(content.decode("utf-8"), "utf-8")
    except UnicodeDecodeError:
        return SkillFileContent(base64.b64encode(content).decode(), "base64")


def stored_path(connection: Connection, version: VersionRow, path: str) -> str:
    """Return the path of a file as it is stored: `path`, or a path that differs only by Unicode normalization.

    Raise FileNotInSkill, with the most similar paths, if the version does not have the file.
    """
    _find(connection, version, path)
    return _twin(connection, version, path) or path


def find_module(connection: Connection, version: VersionRow, module: str) -> str:
    """Return the path of the file that `python -m module` runs. Raise FileNotInSkill if there is no such file."""
    path = module.replace(".", "/")
    for candidate in (f"{path}.py", f"{path}/__main__.py"):
        if _find_or_none(connection, version, candidate) is not None:
            return candidate
    raise _not_found(connection, version, f"{path}.py")


def read_file(connection: Connection, storage: Storage, version: VersionRow, path: str) -> bytes:
    file = _find(connection, version, path)
    with _open(storage, file.sha256, file.data) as stream:
        return stream.read()


def file_size(connection: Connection, version: VersionRow, path: str) -> int:
    """Return the size of a file in bytes, or 0 if the version has no such file."""
    file = _find_or_none(connection, version, path)
    return file.size_bytes if file is not None else 0


def open_content(connection: Connection, storage: Storage, sha256: str) -> BinaryIO:
    """Open a content that a file of a version refers to. The content must exist."""
    return _open(storage, sha256, connection.scalar(select(objects.c.data).where(objects.c.sha256 == sha256)))


class _File(NamedTuple):
    sha256: str
    data: bytes | None
    """The content, or None if the storage holds the content."""
    size_bytes: int


def _find(connection: Connection, version: VersionRow, path: str) -> _File:
    """Return a file of a version. Raise FileNotInSkill if the version has no such file."""
    file = _find_or_none(connection, version, path)
    if file is None:
        raise _not_found(connection, version, path)
    return file


def _find_or_none(connection: Connection, version: VersionRow, path: str) -> _File | None:
    file = None
    if version.unstored is not None:
        if (unstored := version.unstored.files.get(path)) is not None:
            file = _File(unstored.sha256, unstored.content, unstored.size)
    elif rows := _FILE.rows(connection, version_id=version.version_id, path=path):
        [(sha256, data, size_bytes)] = rows
        file = _File(sha256, None if data is None else bytes(data), size_bytes)
    twin = _twin(connection, version, path) if file is None else None
    return _find_or_none(connection, version, twin) if twin else file


def _twin(connection: Connection, version: VersionRow, path: str) -> str | None:
    """Return the path of the file whose path differs from `path` only by Unicode normalization, or None."""
    if path.isascii():
        return None
    composed, paths = normalize("NFC", path), [file.path for file in files_in(connection, version)]
    return next((twin for twin in paths if twin != path and normalize("NFC", twin) == composed), None)


def _open(storage: Storage, sha256: str, data: bytes | None) -> BinaryIO:
    return io.BytesIO(data) if data is not None else storage.open(sha256)


def _not_found(connection: Connection, version: VersionRow, path: str) -> FileNotInSkill:
    paths = [file.path for file in files_in(connection, version)]
    near = near_words(path, paths, cutoff=0.4)
    shown = near or paths[:10]
    return FileNotInSkill(
        f"'{version.name}' {version.version} has no file '{path}'",
        hint=f"The files are {', '.join(shown)}{' and more' if len(paths) > len(shown) else ''}.",
        name=version.name,
        version=version.version,
        path=path,
    )


# -- read_skill_file ---------------------------------------------------------------------------------------------------


class ReadSkillFile(Params, frozen=True, kw_only=True):
    """Read any file in a skill's directory (e.g., SKILL.md, extra docs, schemas)."""

    name: Annotated[str, about("Skill name")]
    version: Annotated[str, about("Skill version (omit for latest)")] = ""
    path: Annotated[str, about("Path to file within skill directory (e.g., 'SKILL.md')")]


async def read_skill_file(
    contents: ContentParts, identity: Identity, params: ReadSkillFile
) -> SkillFileContent | Json[SkillFileContent]:
    name, spec = parse_named(params.name, params.version)
    path = parse_path(params.path)
    small = partial(read_inline_file, identity=identity, name=name, spec=spec, path=path)
    inline = await contents.registry.read(small)
    if inline is not None:
        contents.uses.note_file(name, path, inline[0])
        return inline[1]
    storage = contents.registry.storage
    work = partial(
        read_stored_file,
        identity=identity,
        storage=storage,
        name=name,
        spec=spec,
        path=path,
    )
    version_id, page = await contents.registry.read_page(work)
    contents.uses.note_file(name, path, version_id)
    return Json(page)


# -- load_skills_protocol_guide ----------------------------------------------------------------------------------------


class Guide(msgspec.Struct, frozen=True):
    """The Skills Protocol Guide, in Markdown."""

    content: str


class LoadSkillsProtocolGuide(Params, frozen=True, kw_only=True):
    """Load the Skills Protocol Guide to learn how to use these tools.
    Call this first if you haven't read the guide yet."""


async def load_skills_protocol_guide(guide: Guide, identity: Identity, _: LoadSkillsProtocolGuide) -> Guide:
    return guide


METHODS = (
    Method(read_skill_file, "read", audits="", develops=True),
    Method(load_skills_protocol_guide, "read", audits=""),
)
