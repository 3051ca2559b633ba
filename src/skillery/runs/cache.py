"""The cache: files of skills and blobs on the disk of this machine. Runs share the files, and no file ever changes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path

from skillery.backends import PublishedFile, Storage
from skillery.contents.blob_rows import BlobRow
from skillery.contents.blobs import Blobs
from skillery.contents.store import copy_to, inline_data, open_content
from skillery.database import Database
from skillery.errors import StorageFull, Unavailable, is_disk_full
from skillery.formats.bundle import BundleFile, digest_of_entries
from skillery.formats.paths import leads_outside
from skillery.registry.revocations import version_purged
from skillery.registry.version_rows import VersionRow
from skillery.skills.files import FileRow, files_of

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOTED_EVERY = 600.0
"""Seconds between two records of the use of a bundle. The modification time of its folder is the time of its last use,
up to this many seconds too old.
"""
_DIGEST = re.compile(r"(?:sha256:)?[0-9a-f]{64}")


class Cache:
    """One folder for each bundle and one file for each blob. The name is the digest, and the content is complete.

    Each boot of the machine has a new folder: files are not synced to disk, so a power cut can leave a file with its
    name and without its content. A process that dies leaves incomplete files only in `incoming`.
    """

    def __init__(self, folder: Path, database: Database, storage: Storage, blobs: Blobs) -> None:
        self._database = database
        self._storage = storage
        self._blobs = blobs
        self._folder = folder / _boot()
        self._folder_of = lru_cache(maxsize=4096)(self._bundle_folder)
        self._lock = threading.Lock()
        self._noted_at: dict[str, float] = {}
        """The monotonic time at which the use of a bundle was last recorded, by digest."""
        for folder_of_old_boot in folder.glob("*") if folder.is_dir() else ():
            if folder_of_old_boot != self._folder:
                _remove(folder_of_old_boot)
        self._incoming = self._folder / "incoming"
        _remove(self._incoming)
        for part in ("incoming", "bundles", "blobs"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)

    def bundle(self, version: VersionRow) -> Path:
        """Return the folder with the files of a version. The first use writes the files. Blocking.

        Raise VersionPurged if the version was purged, and Unavailable if its rows are damaged.
        """
        folder = self._folder_of(version.digest)
        while not self._use_bundle(folder, version.digest):
            self._make_bundle(version, folder)
        return folder

    def _bundle_folder(self, digest: str) -> Path:
        """Return the path of the folder for a bundle. Raise Unavailable if `digest` is not a digest."""
        return self._folder / "bundles" / _checked(digest).replace(":", "-")

    def _use_bundle(self, folder: Path, digest: str) -> bool:
        """Record the use of a bundle's folder, so that no sweep deletes it. Return False if there is no folder."""
        with self._lock:
            used_at = self._noted_at.get(digest)
            if used_at is not None and time.monotonic() - used_at < NOTED_EVERY:
                return True
            try:
                os.utime(folder)
            except FileNotFoundError:
                return False
            self._noted_at[digest] = time.monotonic()
            return True

    def lend(self, files: Iterable[PublishedFile | BundleFile]) -> Path:
        """Return a new folder with `files`, for one caller, who deletes it with `take_back`. Blocking.

        Raise StorageFull if the disk is full.
        """
        folder = self._incoming / secrets.token_hex(16)
        try:
            folder.mkdir()
            for file in files:
                path = folder / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.content)
                path.chmod(0o555 if file.executable else 0o444)
        except OSError as error:
            _remove(folder)
            if is_disk_full(error):
                raise StorageFull from error
            raise
        return folder

    def keep(self, files: Sequence[PublishedFile]) -> Path:
        """Return the shared folder with `files`, which is named by their digest. Write it if it does not exist.
        Blocking.
        """
        digest = digest_of_entries(
            (file.path, hashlib.sha256(file.content).hexdigest(), file.executable) for file in files
        )
        folder = self._folder_of(digest)
        while not self._use_bundle(folder, digest):
            self._settle(self.lend(files), folder)
        return folder

    def take_back(self, folder: Path) -> None:
        """Delete a folder that `lend` has returned. Blocking."""
        _remove(folder)

    def blob(self, blob: BlobRow) -> Path:
        """Return the path of a read-only file with the content of a blob. Copy the content if necessary. Blocking."""
        stored = self._blobs.local_path(blob)
        if stored is not None:
            return stored
        path = self._folder / "blobs" / _checked(blob.sha256)
        with self._lock, contextlib.suppress(FileNotFoundError):
            os.utime(path)
            return path
        partial = self._incoming / secrets.token_hex(16)
        copy_to(self._blobs.open(blob), partial, 0o444)
        partial.rename(path)
        return path

    def is_ready(self, version: VersionRow) -> bool:
        """Return whether `bundle` can return quickly, because this server has used the folder before."""
        return version.digest in self._noted_at

    # -- unused files --------------------------------------------------------------------------------------------

    def blobs_unused_since(self, instant: datetime) -> Iterator[tuple[str, int]]:
        """Yield digest and size of each blob that no run has used since `instant`."""
        for path in (self._folder / "blobs").iterdir():
            if _is_older(path, instant):
                with contextlib.suppress(FileNotFoundError):
                    yield path.name, path.stat().st_size

    def drop_blob(self, sha256: str, unused_since: datetime) -> bool:
        """Delete a blob unless a run has used it since `unused_since`. Return whether the blob was deleted."""
        path = self._folder / "blobs" / sha256
        with self._lock:
            if not _is_older(path, unused_since):
                return False
            path.unlink()
            return True

    def drop_unused(self, unused_since: datetime, *, dry_run: bool) -> tuple[int, int]:
        """Delete the blobs and bundles that no run has used since `unused_since`. Return their number and their bytes.

        With `dry_run`, count them only.
        """
        count = freed = 0
        for sha256, size in self.blobs_unused_since(unused_since):
            if dry_run or self.drop_blob(sha256, unused_since):
                count, freed = count + 1, freed + size
        for folder in (self._folder / "bundles").iterdir():
            if not _is_older(folder, unused_since):
                continue
            size = _size_of(folder)
            if dry_run or self._drop_bundle(folder, unused_since):
                count, freed = count + 1, freed + size
        return count, freed

    def bundle_digests(self) -> list[str]:
        """Return the digests of all bundles in the cache. Blocking."""
        names = (folder.name.replace("-", ":", 1) for folder in (self._folder / "bundles").iterdir())
        return [name for name in names if _DIGEST.fullmatch(name)]

    def drop_bundles(self, digests: Iterable[str], *, dry_run: bool = False) -> tuple[int, int]:
        """Delete bundles by digest, even if runs use them. Return the number of deleted bundles and their bytes.

        With `dry_run`, count them only. Blocking.
        """
        count = freed = 0
        for digest in digests:
            folder = self._folder_of(digest)
            if folder.is_dir():
                size = _size_of(folder)
                if dry_run or self._drop_bundle(folder):
                    count, freed = count + 1, freed + size
        return count, freed

    def _drop_bundle(self, folder: Path, unused_since: datetime | None = None) -> bool:
        """Delete the folder of a bundle. Return whether the folder was deleted.

        With `unused_since`, keep the folder if a run has used it since then.
        """
        removed = self._incoming / secrets.token_hex(16)
        with self._lock:
            if unused_since is not None and not _is_older(folder, unused_since):
                return False
            self._noted_at.pop(folder.name.replace("-", ":", 1), None)
            try:
                folder.rename(removed)  # before the deletion, so that no run finds an incomplete folder
            except FileNotFoundError:
                return False
        shutil.rmtree(removed)
        return True

    def _make_bundle(self, version: VersionRow, folder: Path) -> None:
        """Write the files of a version into the cache, as `folder`. Raise the errors of `_files_of`."""
        if version.unstored is not None:
            self._settle(self.lend(version.unstored.files.values()), folder)
            return
        files = self._files_of(version)
        partial = self._incoming / secrets.token_hex(16)
        partial.mkdir()
        self._write_files(partial, files)
        self._settle(partial, folder)
        self._files_of(version)  # a purge during the copy must find nothing

    def _files_of(self, version: VersionRow) -> list[FileRow]:
        """Return the file rows of a version. Raise Unavailable if the rows are damaged.

        If the version was purged since it was resolved, delete its bundle and raise VersionPurged.
        """
        files = self._database.read_now(lambda connection: files_of(connection, version.version_id))
        if not files:  # every version has files until it is purged
            self.drop_bundles([version.digest])
            raise version_purged(version)
        # Rows of a foreign database or backup must not write outside of the cache, or under the digest of other files.
        entries = ((file.path, file.sha256, file.executable) for file in files)
        if digest_of_entries(entries) != version.digest or any(leads_outside(file.path) for file in files):
            raise _damaged(f"the files of {version.name}@{version.version} do not match its digest")
        return files

    def _settle(self, partial: Path, folder: Path) -> None:
        """Rename the complete folder `partial` to its place `folder` in the cache."""
        with self._lock:
            # Another thread may have made the folder in the meantime: it has the same files.
            if folder.is_dir():
                shutil.rmtree(partial)
            else:
                partial.rename(folder)

    def _write_files(self, folder: Path, files: list[FileRow]) -> None:
        """Write the contents of the file rows below `folder`: small ones from the database, others from the storage."""
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


def _checked(digest: str) -> str:
    """Return `digest`. Raise Unavailable if the text is not a digest, because the text becomes a path."""
    if not _DIGEST.fullmatch(digest):
        raise _damaged("a row has a digest that is not a SHA-256")
    return digest


def _damaged(problem: str) -> Unavailable:
    return Unavailable(f"the registry is damaged: {problem}", hint="The admin of the server can run: skillery check.")


def _is_older(path: Path, instant: datetime) -> bool:
    """Return whether the last use of the file or folder was before `instant`. False if it does not exist."""
    try:
        return path.stat().st_mtime < instant.timestamp()
    except FileNotFoundError:
        return False


def _size_of(folder: Path) -> int:
    """Return the sum of the file sizes below a folder in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _remove(path: Path) -> None:
    """Delete a file, a symlink or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _boot() -> str:
    """Return the id of this boot of the machine, or "this-boot" if the system has none."""
    with contextlib.suppress(OSError):
        return BOOT_ID.read_text().strip()
    return "this-boot"
