"""Uploads for publishing: the files of a folder or an archive, stored for an hour as a blob of the user."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec

from skillery.context.budget import body_room
from skillery.context.threads import IMPORTS
from skillery.errors import BlobNotFound, InvalidArchive
from skillery.importing.entries import Archive, ImportLimits
from skillery.web.frame import PageRequest
from skillery.web.uploads import UploadedFile, read_multipart

MOST_BYTES = 64_000_000
"""The maximum number of bytes of an upload, and of all unpacked files in it."""
MOST_FILES = 10_000
KEPT = timedelta(hours=1)
_KIND = "application/x-skillery-upload"
_ARCHIVES = (".zip", ".tar.gz", ".tgz", ".skill")
_LIMITS = ImportLimits(max_bytes=MOST_BYTES, max_unpacked_bytes=MOST_BYTES, max_entries=MOST_FILES)
_LEFT_OUT = frozenset({"__pycache__", "__MACOSX", "node_modules"})


class Entry(msgspec.Struct):
    """A file of an upload."""

    path: str
    content: bytes


class Bundle(msgspec.Struct):
    """The files of an upload. Paths are relative to the folder of the skill."""

    files: list[Entry]
    skipped: int = 0
    """The number of hidden files and caches that were left out."""

    def find(self, path: str) -> bytes | None:
        """Return the content of a file, or None."""
        return next((file.content for file in self.files if file.path == path), None)

    @property
    def manifests(self) -> int:
        """The number of files named skill.toml."""
        return sum(file.path.rpartition("/")[2] == "skill.toml" for file in self.files)

    def as_zip(self) -> bytes:
        """Return the files as a zip archive, for an import."""
        archive_bytes = io.BytesIO()
        with zipfile.ZipFile(archive_bytes, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in self.files:
                archive.writestr(zipfile.ZipInfo(file.path), file.content)
        return archive_bytes.getvalue()


async def receive(request: PageRequest) -> Bundle:
    """Return the files of a sent form: those of a folder, or those in a single archive.

    Raise the errors of `read_multipart`. Raise InvalidArchive or ArchiveTooLarge if the archive cannot be read.
    """
    entries: list[Entry] = []
    room = body_room.get()

    async def keep(file: UploadedFile, content: AsyncIterator[bytes]) -> str:
        if len(entries) >= MOST_FILES:
            raise InvalidArchive(f"the folder has more than {MOST_FILES} files", hint="Leave some out.")
        gathered = bytearray()
        async for chunk in content:
            room.take(len(chunk))
            gathered += chunk
        entries.append(Entry(file.name.replace("\\", "/"), bytes(gathered)))
        return file.name

    await read_multipart(request, keep, MOST_BYTES)
    if len(entries) == 1 and entries[0].path.lower().endswith(_ARCHIVES):
        importer = request.site.core.importer
        with importer.temporary_file() as file:
            await IMPORTS.run(file.write, entries[0].content)
            async with importer.opened(file, _LIMITS) as archive:
                room.take(sum(entry.size for entry in archive.entries))
                entries = await IMPORTS.run(_unpacked, archive)
    return await asyncio.to_thread(_bundle_of, entries)


def _bundle_of(entries: list[Entry]) -> Bundle:
    """Return the files without hidden ones and caches. A common top folder is removed from the paths."""
    published = [entry for entry in entries if _is_kept(entry.path)]
    paths = [entry.path for entry in published]
    root = paths[0].partition("/")[0] if paths else ""
    if root and all(path.startswith(f"{root}/") for path in paths):
        published = [Entry(entry.path[len(root) + 1 :], entry.content) for entry in published]
    return Bundle(published, len(entries) - len(published))


def _is_kept(path: str) -> bool:
    parts = path.split("/")
    return not any(part.startswith(".") or part in _LEFT_OUT or not part for part in parts)


def _unpacked(archive: Archive) -> list[Entry]:
    """Return the files in an archive. Links are left out. Raise InvalidArchive if a file cannot be read."""
    return [Entry(entry.path, archive.read(entry)) for entry in archive.entries if not entry.target]


async def keep(request: PageRequest, bundle: Bundle) -> str:
    """Store an upload for an hour. Return its blob id, which only its user can use."""
    content = await asyncio.to_thread(msgspec.msgpack.encode, bundle)
    blob = await request.site.core.blobs.create_blob(request.identity, content, _KIND, KEPT)
    return blob.blob_id


async def find(request: PageRequest, upload: str) -> tuple[Bundle, str]:
    """Return an upload of the user and its digest. Raise BlobNotFound if the user has no such upload."""
    blob = await request.site.core.blobs.find_blob(request.identity, upload)
    if blob.kind != _KIND or blob.owner != request.identity.name:
        raise BlobNotFound(
            f"there is no upload '{upload[:80]}'", hint="Uploads expire after an hour. Upload the files again."
        )
    content: Any = await asyncio.to_thread(request.site.core.blobs.read_range, blob, 0, blob.size_bytes)
    return await asyncio.to_thread(msgspec.msgpack.decode, content, type=Bundle), blob.sha256
