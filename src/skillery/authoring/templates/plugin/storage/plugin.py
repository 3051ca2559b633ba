"""__DESCRIPTION__"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import BinaryIO

import msgspec
from skillery import hookimpl
from skillery.backends import Offer, Place
from skillery.errors import ContentMissing

api_version = __API__


class __CLASS__Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    folder: str
    """The folder of the contents."""


class __CLASS__Upload:
    """See `skillery.backends.Upload`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"incoming-{secrets.token_hex(8)}"
        self._file = self._path.open("xb")

    def write(self, chunk: bytes) -> None:
        self._file.write(chunk)

    def commit(self, digest: str) -> None:
        # Durable before visible: first the bytes, then the name, then the entry of the folder.
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.rename(self._folder / digest)
        sync_folder(self._folder)

    def abort(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class __CLASS__Storage:
    """See `skillery.backends.Storage`. Each content is a file with its digest as the name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("incoming-*"):
            leftover.unlink()

    def begin(self) -> __CLASS__Upload:
        return __CLASS__Upload(self._folder)

    def open(self, digest: str) -> BinaryIO:
        path = self.local_path(digest)
        if path is None:
            raise ContentMissing(f"there is no content {digest:.80}")
        return path.open("rb")

    def local_path(self, digest: str) -> Path | None:
        if len(digest) != 64 or not digest.isalnum():
            return None
        path = self._folder / digest
        return path if path.is_file() else None

    def delete(self, digest: str) -> None:
        path = self.local_path(digest)
        if path is not None:
            path.unlink(missing_ok=True)

    def check(self) -> None:
        self.begin().abort()


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def open_storage(settings: __CLASS__Settings, place: Place) -> __CLASS__Storage:
    return __CLASS__Storage(Path(settings.folder).expanduser())


@hookimpl
def skillery_storage() -> Offer:
    return Offer("__OFFER__", open_storage, __CLASS__Settings)
