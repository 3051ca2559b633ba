"""The host of a run of a folder, without a registry: blobs are files in a temporary folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from skillery.backends import Job, Progress, RunHost
from skillery.errors import BlobNotFound, NotAllowed, TooLarge
from skillery.formats.texts import new_blob_id

MEBIBYTE = 1024 * 1024


class FolderHost(RunHost):
    """The RunHost of one run of a folder: blobs are files in `folder`."""

    def __init__(self, folder: Path, job: Job, on_progress: Callable[[Progress], None] | None = None) -> None:
        """`on_progress` is called with each progress that the code reports."""
        self._folder = folder
        self._limits = job.limits
        self._bytes_left = job.limits.blobs_mb * MEBIBYTE
        self._on_progress = on_progress
        self._begun = 0
        self.written: dict[str, Path] = {}

    async def begin_blob(self, kind: str, path: str | None = None) -> FileWriter:
        if self._begun >= self._limits.blobs:
            raise TooLarge(f"this run has written {self._limits.blobs} blobs, which is its limit")
        self._begun += 1
        blob_id = new_blob_id()
        return FileWriter(self, blob_id, self._folder / blob_id.replace(":", "-"))

    async def read_blob(self, blob_id: str) -> bytes:
        if blob_id not in self.written:
            raise BlobNotFound(f"the blob '{blob_id}' is neither an input nor an output of this run")
        return await asyncio.to_thread(self.written[blob_id].read_bytes)

    async def call_skill(self, skill: str, function: str, args: bytes) -> bytes:
        raise NotAllowed(f"this run mounts no skill '{skill[:128]}' that has permissions")

    def progressed(self, progress: Progress) -> None:
        if self._on_progress is not None:
            self._on_progress(progress)

    def spend(self, size: int) -> None:
        """Count written bytes. Raise TooLarge if the run exceeds its limit."""
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise TooLarge(f"the blobs of this run would exceed its limit of {self._limits.blobs_mb} MiB")


class FileWriter:
    """The BlobWriter of one blob."""

    def __init__(self, host: FolderHost, blob_id: str, path: Path) -> None:
        self._host = host
        self._blob_id = blob_id
        self._path = path
        self._file: BinaryIO = path.open("xb")

    async def write(self, chunk: bytes) -> None:
        self._host.spend(len(chunk))
        self._file.write(chunk)

    async def commit(self) -> str:
        self._file.close()
        self._host.written[self._blob_id] = self._path
        return self._blob_id

    async def abort(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)
