"""The manifest of a snapshot: the list of its files, and its digest. The contents of recent workspaces in memory."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, NamedTuple

import msgspec

from skillery.backends import KeptFile, OpenContents, Storage
from skillery.contents.store import inline_data
from skillery.database import Database
from skillery.errors import ContentMissing, InvalidParams, InvalidPath
from skillery.formats.paths import check_paths, path_problem, plain_path
from skillery.formats.wording import quoted
from skillery.method import about

PATH_BYTES = 1024
"""The maximum length of a path in UTF-8."""
_decoder = msgspec.json.Decoder(tuple[KeptFile, ...])


class Manifest(NamedTuple):
    """The entries of a snapshot, sorted by path: files, links and empty folders."""

    files: tuple[KeptFile, ...]

    @property
    def digest(self) -> str:
        """The SHA-256 over one line for each entry, computed as for a bundle. It does not cover modification times."""
        hasher = hashlib.sha256()
        for file in self.files:
            hasher.update(f"{file.mode} {file.sha256} {file.path}\n".encode())
        return f"sha256:{hasher.hexdigest()}"

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def content(self) -> bytes:
        """The manifest as JSON, in which it is stored."""
        return msgspec.json.encode(self.files)

    @property
    def contents(self) -> dict[str, int]:
        """The size in bytes of each content that a file has, by digest."""
        return {file.sha256: file.size_bytes for file in self.files if file.is_file}

    def changes_since(self, before: Manifest) -> int:
        """Return the number of paths that were added, changed or removed since the manifest `before`."""
        entries_before, entries_now = (
            {(file.path, file.mode, file.sha256) for file in manifest.files} for manifest in (before, self)
        )
        return len({path for path, _, _ in entries_before ^ entries_now})

    def find(self, path: str) -> KeptFile | None:
        """Return the entry of a path, or None if there is no such entry."""
        return next((file for file in self.files if file.path == path), None)


EMPTY = Manifest(())


def make_manifest(files: Sequence[KeptFile]) -> Manifest:
    """Return the manifest of entries in any order.

    Raise InvalidPath if a path is invalid, occurs twice, or is also a folder of another path.
    """
    ordered = tuple(sorted(files, key=lambda file: file.path.encode()))
    paths = {file.path for file in ordered}
    folders = {path.rpartition("/")[0] for path in paths if "/" in path}
    folders |= {"/".join(path.split("/")[:depth]) for path in paths for depth in range(1, path.count("/"))}
    for file in ordered:
        if not _is_plain(file.path) or (file.path in folders):
            raise InvalidPath(f"the path {quoted(file.path[:200])} cannot be kept in a workspace")
    if len(paths) != len(ordered):
        raise InvalidPath("a path occurs twice in the workspace")
    return Manifest(ordered)


def _is_plain(path: str) -> bool:
    """Return whether a path has no control characters, no empty, `.` or `..` segment, and at most PATH_BYTES."""
    segments = path.split("/")
    has_control = any(letter < " " or "\x7f" <= letter < "\xa0" for letter in path)
    return not has_control and len(path.encode()) <= PATH_BYTES and not {"", ".", ".."}.intersection(segments)


def read_manifest(content: bytes) -> Manifest:
    """Return the manifest from its stored form."""
    return Manifest(_decoder.decode(content))


# -- Contents of recently used workspaces in memory, as open files that a sandbox can copy from ------------------------


MOST_BYTES = 64 << 20
"""The maximum number of bytes of the contents of all families in memory."""
MOST_OF_ONE = 32 << 20
"""The maximum number of bytes of the contents of one family in memory."""
FILES_AT_ONCE = 400
"""The number of files whose small contents one query reads."""


class _Family:
    """The contents of a family in one file in memory. New contents are appended, so that open descriptors stay
    valid.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("skillery-workspace", os.MFD_CLOEXEC)
        self.offsets: dict[str, int] = {}
        self.size = 0
        self.lock = asyncio.Lock()

    def missing(self, manifest: Manifest) -> list[KeptFile]:
        """Return one file of the manifest for each content that is not in memory."""
        needed = {file.sha256: file for file in manifest.files if file.is_file}
        return [file for sha256, file in needed.items() if sha256 not in self.offsets]

    def add(self, sha256: str, content: bytes) -> None:
        """Append a content to the file in memory. Blocking."""
        remaining, offset = memoryview(content), self.size
        while remaining:
            written = os.pwrite(self.descriptor, remaining, offset)
            remaining, offset = remaining[written:], offset + written
        self.offsets[sha256] = self.size
        self.size = offset

    def open(self, manifest: Manifest) -> OpenContents:
        """Return a new read-only descriptor of the file in memory, and the offset of each file of the manifest in
        it.
        """
        offsets = tuple(self.offsets[file.sha256] if file.is_file else 0 for file in manifest.files)
        return OpenContents(os.open(f"/proc/self/fd/{self.descriptor}", os.O_RDONLY | os.O_CLOEXEC), offsets)

    def __del__(self) -> None:
        os.close(self.descriptor)


class RecentContents:
    """The contents of recently used workspaces, at most MOST_BYTES. The least recently used family is removed first."""

    def __init__(self, database: Database, storage: Storage) -> None:
        self._database = database
        self._storage = storage
        self._families: dict[int, _Family] = {}

    async def open(self, family_id: int, manifest: Manifest) -> OpenContents | None:
        """Return the contents of all files of a manifest. The caller closes the descriptor.

        Return None if there are no bytes, more than MOST_OF_ONE, or if the system is not Linux. Raise ContentMissing if
        a content is not in the storage.
        """
        if not 0 < manifest.size_bytes <= MOST_OF_ONE or sys.platform != "linux":
            return None
        family = self._families.pop(family_id, None)
        if family is None or family.size + _bytes_of(family.missing(manifest)) > MOST_OF_ONE:
            family = _Family()  # the former file may have contents that are no longer needed
        self._families[family_id] = family
        async with family.lock:
            missing = family.missing(manifest)
            if missing:
                await asyncio.to_thread(self._add_all, family, missing)
        self._drop_oldest()
        return family.open(manifest)

    def _add_all(self, family: _Family, missing: list[KeptFile]) -> None:
        """Read the contents of `missing` from the database or the storage into memory. Blocking."""
        for start in range(0, len(missing), FILES_AT_ONCE):
            batch = missing[start : start + FILES_AT_ONCE]
            small = self._database.read_now(partial(inline_data, digests=[file.sha256 for file in batch]))
            for file in batch:
                data = small.get(file.sha256)
                family.add(file.sha256, data if data is not None else self._stored(file))

    def _stored(self, file: KeptFile) -> bytes:
        """Return a content from the storage. Raise ContentMissing if it has another size."""
        with self._storage.open(file.sha256) as stream:
            content = stream.read()
        if len(content) != file.size_bytes:
            raise ContentMissing(f"the content of '{file.path}' is incomplete")
        return content

    def _drop_oldest(self) -> None:
        """Remove the least recently used families until MOST_BYTES are not exceeded. One family always stays."""
        while len(self._families) > 1 and sum(family.size for family in self._families.values()) > MOST_BYTES:
            del self._families[next(iter(self._families))]


def _bytes_of(files: list[KeptFile]) -> int:
    return sum(file.size_bytes for file in files)


# -- Files that a caller gives to a run or a workspace: blobs with their paths -----------------------------------------


MOST_FILES = 1_000
OUT = "out"
"""The folder below /workspace whose files a run keeps as blobs."""
PATH_HINT = (
    "A path is relative to /workspace, with '/' between at most 8 segments, e.g. 'in/report.docx', and at most 255 "
    "bytes."
)


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file in the workspace of a run."""

    path: Annotated[str, about("Path below /workspace (e.g., 'report.docx')")]
    blob_id: Annotated[str, about("Blob that is copied there")]
    executable: Annotated[bool, about("Whether the copy is executable", default=False)] = False


def parse_files(files: Sequence[RunFile]) -> tuple[RunFile, ...]:
    """Return the files with plain paths.

    Raise InvalidPath if a path breaks the rules of bundle paths, is `out` or collides with another path. Raise
    InvalidParams if there are more than MOST_FILES.
    """
    if len(files) > MOST_FILES:
        raise InvalidParams(
            f"a run was given {len(files)} files, at most {MOST_FILES} are allowed",
            hint="Pack them into an archive and unpack it in the run.",
            param="files",
        )
    plain = [msgspec.structs.replace(file, path=plain_path(file.path)) for file in files]
    for file in plain:
        problem = path_problem(file.path)
        if problem:
            raise InvalidPath(f"The path {quoted(file.path)} {problem}.", hint=PATH_HINT, param="files")
        if file.path.casefold() == OUT:
            message = f"{quoted(file.path)} is the folder whose files a run keeps: it cannot be a file"
            raise InvalidPath(message, hint="Write out/NAME for a file in the folder out.", param="files")
    check_paths(file.path for file in plain)
    return tuple(plain)
