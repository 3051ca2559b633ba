"""The contents of a version's files, one after the other, at constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from skillery.backends import Storage
from skillery.contents import CHUNK_BYTES, inline_data, is_inline, open_content
from skillery.database import Database
from skillery.formats.archives import Entry
from skillery.registry.reading import FileRow

WINDOW_BYTES = 1024 * 1024
"""Of small files that are read from the database at once."""


class Contents:
    """Reads stored files, best in the order of their paths. Blocking."""

    def __init__(self, database: Database, storage: Storage, files: Sequence[FileRow]) -> None:
        self._database = database
        self._storage = storage
        self._files = {file.path: file for file in files}
        self._instead: dict[str, bytes] = {}
        self._window: dict[str, bytes] = {}

    def replace(self, path: str, content: bytes) -> None:
        """From now on this stands where a stored content stood."""
        self._instead[path] = content

    def entries(self) -> list[Entry]:
        return [Entry(path, self.size(path), file.executable) for path, file in self._files.items()]

    def size(self, path: str) -> int:
        return len(self._instead[path]) if path in self._instead else self._files[path].size_bytes

    def sha256(self, path: str) -> str:
        """Of what is stored."""
        return self._files[path].sha256

    def read(self, entry: Entry) -> Iterable[bytes]:
        """Raises ContentMissing."""
        if entry.path in self._instead:
            return [self._instead[entry.path]]
        file = self._files[entry.path]
        if is_inline(file.size_bytes):
            data = self._small(file)
            if data is not None:
                return [data]
        return self._pieces(file.sha256)

    def whole(self, path: str) -> bytes:
        return b"".join(self.read(Entry(path, self.size(path), executable=False)))

    def _small(self, wanted: FileRow) -> bytes | None:
        """With those that come next, so that a bundle of many small files takes few questions."""
        if wanted.sha256 not in self._window:
            digests, size = [], 0
            for file in self._files.values():
                if size or file.path == wanted.path:
                    size += file.size_bytes if is_inline(file.size_bytes) else 0
                    digests += [file.sha256] if is_inline(file.size_bytes) else []
                if size >= WINDOW_BYTES:
                    break
            digests = digests or [wanted.sha256]
            self._window = self._database.read_now(partial(inline_data, digests=digests))
        return self._window.get(wanted.sha256)

    def _pieces(self, sha256: str) -> Iterator[bytes]:
        with self._database.read_now(partial(open_content, storage=self._storage, sha256=sha256)) as stream:
            while piece := stream.read(CHUNK_BYTES):
                yield piece
