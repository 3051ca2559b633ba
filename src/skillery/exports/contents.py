"""A reader for the contents of a version's files. The files are read one after another, with constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from skillery.backends import Storage
from skillery.contents.store import CHUNK_BYTES, inline_data, is_inline, open_content
from skillery.database import Database
from skillery.formats.agent_skill import AgentSkill, agent_skill, index_name
from skillery.formats.archives import ArchiveEntry
from skillery.registry.files import FileRow

WINDOW_BYTES = 1024 * 1024
"""One query reads small files from the database until they have at least this many bytes together."""


class Contents:
    """Reads stored files. Reading in the order of their paths is the fastest. Blocking."""

    def __init__(self, database: Database, storage: Storage, files: Sequence[FileRow]) -> None:
        self._database = database
        self._storage = storage
        self._files = {file.path: file for file in files}
        self._heads: dict[str, tuple[bytes, int]] = {}
        self._window: dict[str, bytes] = {}

    def replace_beginning(self, path: str, head: bytes, size: int) -> None:
        """Replace the beginning of a file. The new content is `head` and the end of the stored content, together
        `size` bytes.
        """
        self._heads[path] = head, size

    def entries(self) -> list[ArchiveEntry]:
        return [ArchiveEntry(path, self.size(path), file.executable) for path, file in self._files.items()]

    def size(self, path: str) -> int:
        return self._heads[path][1] if path in self._heads else self._files[path].size_bytes

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of the stored content."""
        return self._files[path].sha256

    def read(self, entry: ArchiveEntry) -> Iterable[bytes]:
        """Return the content in pieces. Iterating raises ContentMissing if the storage does not have the content."""
        file = self._files[entry.path]
        if entry.path not in self._heads:
            return self._stored(file)
        head, size = self._heads[entry.path]
        return chain([head], _behind(self._stored(file), file.size_bytes - (size - len(head))))

    def _stored(self, file: FileRow) -> Iterable[bytes]:
        if is_inline(file.size_bytes):
            data = self._small(file)
            if data is not None:
                return [data]
        return self._pieces(file.sha256)

    def whole(self, path: str) -> bytes:
        return b"".join(self.read(ArchiveEntry(path, self.size(path), executable=False)))

    def _small(self, wanted: FileRow) -> bytes | None:
        """Return the content of a small file, or None if it is not in the database.

        The query also reads the small files that follow, so that a bundle of many small files needs few queries.
        """
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


def _behind(pieces: Iterable[bytes], skipped: int) -> Iterator[bytes]:
    for piece in pieces:
        if skipped < len(piece):
            yield piece[skipped:]
        skipped = max(0, skipped - len(piece))


def make_conform(contents: Contents, skill_md: str, name: str, manifest_json: str) -> AgentSkill:
    """Return the skill `name` as an Agent Skill. Change `contents` so that its file `skill_md` conforms too."""
    manifest: dict[str, Any] = msgspec.json.decode(manifest_json)
    skill = agent_skill(contents.whole(skill_md), name=index_name(name), description=manifest["description"])
    if skill.is_generated:
        contents.replace_beginning(skill_md, skill.head, len(skill.content))
    return skill
