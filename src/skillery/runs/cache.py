"""Files of skills and blobs as a sandbox needs them: on this machine's disk, immutable, shared between runs."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

from skillery.backends import PublishedFile, Storage
from skillery.blobs import BlobRow, Blobs
from skillery.contents import copy_to, inline_data, open_content
from skillery.database import Database
from skillery.registry import VersionRow, files_of
from skillery.registry.reading import FileRow

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Cache:
    """A folder a bundle, a file a blob, named by digest; whatever has a name is whole.

    Nothing in it is flushed to the disk, so it is thrown away after a boot: a power cut could have left a file with
    its name and without its content. A process that dies leaves only what has no name yet.
    """

    def __init__(self, folder: Path, database: Database, storage: Storage, blobs: Blobs) -> None:
        self._database = database
        self._storage = storage
        self._blobs = blobs
        self._folder = folder / _boot()
        self._lock = threading.Lock()
        self._known: set[str] = set()
        for old in folder.glob("*") if folder.is_dir() else ():
            if old != self._folder:
                _remove(old)
        self._incoming = self._folder / "incoming"
        _remove(self._incoming)
        for part in ("incoming", "bundles", "blobs"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)

    def bundle(self, version: VersionRow) -> Path:
        """Blocking on first use: the folder that holds the files of a version."""
        folder = self._folder / "bundles" / version.digest.replace(":", "-")
        if version.digest not in self._known and not folder.is_dir():
            self._make_bundle(version, folder)
        self._known.add(version.digest)
        return folder

    def lend(self, files: Iterable[PublishedFile]) -> Path:
        """Blocking: a folder with these files, as one of a bundle, until it is given to `take_back`."""
        folder = self._incoming / secrets.token_hex(16)
        folder.mkdir()
        for file in files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.content)
            path.chmod(0o555 if file.executable else 0o444)
        return folder

    def take_back(self, folder: Path) -> None:
        """Blocking."""
        _remove(folder)

    def blob(self, blob: BlobRow) -> Path:
        """Blocking: a read-only file with the content of a blob."""
        stored = self._blobs.local_path(blob)
        if stored is not None:
            return stored
        path = self._folder / "blobs" / blob.sha256
        if not path.is_file():
            partial = self._incoming / secrets.token_hex(16)
            copy_to(self._blobs.open(blob), partial, 0o444)
            partial.rename(path)
        return path

    def is_ready(self, version: VersionRow) -> bool:
        """Whether `bundle` answers without touching the disk."""
        return version.digest in self._known

    def _make_bundle(self, version: VersionRow, folder: Path) -> None:
        files = self._database.read_now(lambda connection: files_of(connection, version.version_id))
        partial = self._incoming / secrets.token_hex(16)
        partial.mkdir()
        self._write_files(partial, files)
        with self._lock:
            # Another run of the same bundle may have been faster; then its folder serves as well.
            if folder.is_dir():
                shutil.rmtree(partial)
            else:
                partial.rename(folder)

    def _write_files(self, folder: Path, files: list[FileRow]) -> None:
        inline = self._database.read_now(lambda connection: inline_data(connection, [file.sha256 for file in files]))
        for file in files:
            path = folder / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = 0o555 if file.executable else 0o444
            if file.sha256 in inline:
                path.write_bytes(inline[file.sha256])
                path.chmod(mode)
            else:
                stream = self._database.read_now(
                    lambda connection, sha256=file.sha256: open_content(connection, self._storage, sha256)  # type: ignore[misc]
                )
                copy_to(stream, path, mode)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _boot() -> str:
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text().strip()
    return "this-boot"
