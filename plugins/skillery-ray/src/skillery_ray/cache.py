"""The cache of a node: trees by digest, verified when they arrive, and read-only after that."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import secrets
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from weakref import WeakValueDictionary

from skillery.backends import PackageMount
from skillery_ray.trees import CONTENT, Entry, digest_of

Pieces = Callable[[], Awaitable[bytes]]
"""Returns the next piece of the contents of a tree."""
MOST_CACHES = 64


class WrongContent(Exception):
    """Raised if a tree does not match its digest."""


class Cache:
    """The trees of a node: one folder for each tree, named by its digest. Only complete and verified trees have this
    name.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._trees = folder / "trees"
        self._incoming = folder / "incoming"
        self._most = most_bytes
        shutil.rmtree(self._incoming, ignore_errors=True)
        for part in (self._trees, self._incoming):
            part.mkdir(parents=True, exist_ok=True)
        trees = sorted(self._trees.iterdir(), key=lambda tree: tree.stat().st_mtime)
        self._sizes = {tree.name: _size_of(tree) for tree in trees}
        """The bytes of each tree, least recently used first."""
        self._used: Counter[str] = Counter()
        self._packages: WeakValueDictionary[str, PackageMount] = WeakValueDictionary()
        self._fetching: dict[str, asyncio.Lock] = {}

    def folder(self, digest: str) -> Path:
        return self._trees / digest

    def file(self, digest: str) -> Path:
        return self._trees / digest / CONTENT

    def packages(self, lock: str, digest: str) -> PackageMount:
        """Return the mount of a tree with packages. While it is referenced, the tree stays in the cache."""
        mount = self._packages.get(digest)
        if mount is None or mount.lock != lock:
            mount = self._packages[digest] = PackageMount(lock, self.folder(digest))
        return mount

    def release(self, digest: str) -> None:
        """End one use of a tree that `hold` has begun: without uses, the tree may be removed."""
        self._used[digest] -= 1

    async def hold(self, digest: str, fetch: Callable[[], Awaitable[tuple[tuple[Entry, ...], Pieces]]]) -> None:
        """Keep a tree in the cache until `release` is called. If the cache does not have the tree, fetch and store it.

        `fetch` returns the entries of the tree, and a function for its contents. Concurrent callers fetch it once.
        Raise WrongContent if the fetched tree does not match its digest, OSError if it cannot be stored.
        """
        self._used[digest] += 1
        try:
            async with self._fetching.setdefault(digest, asyncio.Lock()):
                if digest not in self._sizes:
                    entries, pieces = await fetch()
                    self._sizes[digest] = await self._store(digest, entries, pieces)
                    await asyncio.to_thread(_delete, self._shrink())
            self._sizes[digest] = self._sizes.pop(digest)
        except BaseException:
            self.release(digest)
            raise
        finally:
            if not self._used[digest] or digest in self._sizes:
                self._fetching.pop(digest, None)

    async def _store(self, digest: str, entries: tuple[Entry, ...], pieces: Pieces) -> int:
        """Store a fetched tree, and return its size in bytes. Raise WrongContent if it does not match the digest."""
        if digest_of(entries) != digest:
            raise WrongContent(f"the list of files does not match the digest {digest}")
        partial = self._incoming / secrets.token_hex(16)
        partial.mkdir()
        try:
            for entry in entries:
                await _store_entry(partial, entry, pieces)
            partial.rename(self.folder(digest))
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, partial, True)
            raise
        return sum(entry.size_bytes for entry in entries)

    def _shrink(self) -> list[Path]:
        """Remove the least recently used trees that no run uses from the cache, until it is within its limit. Return
        their folders, for deletion in a thread.

        Call this on the event loop: in a thread, it could remove a tree that a run has just begun to use.
        """
        size, away = sum(self._sizes.values()), []
        for digest, tree_size in list(self._sizes.items()):
            if size <= self._most:
                break
            if self._used[digest] or digest in self._packages:
                continue
            folder = self._incoming / secrets.token_hex(16)
            self.folder(digest).rename(folder)  # before the deletion, so that no run finds an incomplete folder
            del self._sizes[digest]
            size -= tree_size
            away.append(folder)
        return away


def _delete(folders: list[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder)


async def _store_entry(folder: Path, entry: Entry, pieces: Pieces) -> None:
    path = folder / _checked(entry.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry.mode == "040000":
        path.mkdir(exist_ok=True)
    elif entry.mode == "120000":
        path.symlink_to(entry.target)
    else:
        await _store_file(path, entry, pieces)


async def _store_file(path: Path, entry: Entry, pieces: Pieces) -> None:
    """Store one file from the pieces. Raise WrongContent if it does not match its size or digest."""
    hasher, missing_bytes = hashlib.sha256(), entry.size_bytes
    with path.open("xb") as file:
        while missing_bytes > 0:
            piece = await pieces()
            if not 0 < len(piece) <= missing_bytes:
                raise WrongContent(f"'{entry.path}' has another size than its list says")
            await asyncio.to_thread(_append, file, piece, hasher)
            missing_bytes -= len(piece)
    if hasher.hexdigest() != entry.sha256:
        raise WrongContent(f"'{entry.path}' does not match its digest")
    await asyncio.to_thread(_finish, path, entry)


def _finish(path: Path, entry: Entry) -> None:
    path.chmod(0o555 if entry.mode == "100755" else 0o444)
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns))


def _append(file: BinaryIO, piece: bytes, hasher: hashlib._Hash) -> None:
    file.write(piece)
    hasher.update(piece)


def _checked(path: str) -> PurePosixPath:
    """Return a path of an entry. Raise WrongContent if the path could leave its folder."""
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts:
        raise WrongContent(f"the path {path!r} is not allowed")
    return parts


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def own_folder(folder: Path) -> tuple[Path, BinaryIO]:
    """Return a subfolder of `folder` for this process alone, and the lock on it, which ends with the process.

    Several nodes on one machine have the same `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number in range(MOST_CACHES):
        node_folder = folder / f"node-{number}"
        node_folder.mkdir(exist_ok=True, mode=0o700)
        lock = (node_folder / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return node_folder, lock
    raise OSError(f"{MOST_CACHES} nodes on this machine use {folder}")
