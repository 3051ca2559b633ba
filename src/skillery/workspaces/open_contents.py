"""Contents of recently used workspaces in memory, as open files that a sandbox can copy from."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial

from skillery.backends import KeptFile, OpenContents, Storage
from skillery.contents.store import inline_data
from skillery.database import Database
from skillery.errors import ContentMissing
from skillery.workspaces.manifests import Manifest

MOST_BYTES = 64 << 20
"""The maximum number of bytes of the contents of all families in memory."""
MOST_OF_ONE = 32 << 20
"""The maximum number of bytes of the contents of one family in memory."""
FILES_AT_ONCE = 400


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
