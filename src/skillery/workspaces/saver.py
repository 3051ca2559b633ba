"""Saving of a workspace: store the contents of a run's files, and the manifest of the next snapshot."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from skillery.backends import KeptFile, Storage
from skillery.contents.store import Incoming, is_inline
from skillery.context.threads import JSON
from skillery.database import Database
from skillery.errors import ContentMissing
from skillery.workspaces.manifests import Manifest, make_manifest
from skillery.workspaces.rows import known_contents, refer

AT_ONCE = 4 << 20
"""The bytes of small files after which they are stored in one transaction."""


class Content(NamedTuple):
    """The digest and size of a content, and its bytes if the database stores them."""

    sha256: str
    size_bytes: int
    data: bytes | None


class Saver:
    """Stores the files of one run. The snapshot is saved only if `manifest` is set and `is_complete` is true.

    Each content is stored and referred to by the family in one transaction, so that no sweep deletes it before the
    snapshot is saved.
    """

    def __init__(self, database: Database, storage: Storage, family_id: int) -> None:
        self._database = database
        self._storage = storage
        self._family_id = family_id
        self._needed: list[KeptFile] = []
        self._batch: list[Content] = []
        self._batch_bytes = 0
        self.known: Collection[str] = ()
        """Digests of the contents that the run started with. The family refers to them."""
        self.manifest: Manifest | None = None
        """The files of the workspace at the end of the run."""
        self.left_out: Sequence[str] = ()
        """Paths of files that cannot be kept, such as pipes."""
        self.is_complete = False
        """True if all contents of the manifest are stored."""

    async def list_workspace(self, files: Sequence[KeptFile], left_out: Sequence[str]) -> Sequence[int]:
        """Implement `RunHost.list_workspace`: return the positions of files whose contents the server does not have."""
        self.manifest = await JSON.run(make_manifest, files)
        self.left_out = left_out
        known = set(self.known)
        if any(file.is_file and file.sha256 not in known for file in files):
            known |= await self._database.read(partial(known_contents, family_id=self._family_id))
        positions = []
        for position, file in enumerate(files):
            if file.is_file and file.sha256 not in known:
                known.add(file.sha256)
                positions.append(position)
        self._needed = [files[position] for position in positions]
        return positions

    async def keep_contents(self, pieces: AsyncIterator[bytes]) -> None:
        """Implement `RunHost.keep_contents`: store the contents of the files at these positions.

        Raise ContentMissing if a content does not have the listed digest.
        """
        unread = b""
        for file in self._needed:
            if is_inline(file.size_bytes):
                while len(unread) < file.size_bytes:
                    unread += await anext(pieces)
                content, unread = unread[: file.size_bytes], unread[file.size_bytes :]
                await self._add_small(file, content)
            else:
                unread = await self._add_large(file, unread, pieces)
        await self._flush()
        async for _ in pieces:
            raise ContentMissing("the run sent more content than it listed")
        self.is_complete = True

    async def _add_small(self, file: KeptFile, content: bytes) -> None:
        """Add a content to the batch, and store the batch if it has more than AT_ONCE bytes."""
        check_digest(file, hashlib.sha256(content).hexdigest())
        self._batch.append(Content(file.sha256, file.size_bytes, content))
        self._batch_bytes += file.size_bytes
        if self._batch_bytes > AT_ONCE:
            await self._flush()

    async def _flush(self) -> None:
        """Store the batch of small contents in one transaction."""
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        if batch:
            await self._database.write(partial(refer, family_id=self._family_id, contents=batch))

    async def _add_large(self, file: KeptFile, rest: bytes, pieces: AsyncIterator[bytes]) -> bytes:
        """Store the content of a large file. Its bytes are `rest`, followed by `pieces`.

        Return the bytes after the end of the file in its last piece.
        """
        incoming, bytes_left = Incoming(self._database, self._storage), file.size_bytes
        try:
            while bytes_left:
                piece = rest or await anext(pieces)
                chunk, rest = piece[:bytes_left], piece[bytes_left:]
                bytes_left -= len(chunk)
                await asyncio.to_thread(incoming.write, chunk)
            await asyncio.to_thread(self._commit, incoming, file)
        except BaseException:
            await asyncio.to_thread(incoming.abort)
            raise
        return rest

    def _commit(self, incoming: Incoming, file: KeptFile) -> None:
        """Store a received content, and let the family refer to it. Raise ContentMissing if its digest is wrong.
        Blocking.
        """

        def refer_family(connection: Connection, content: object) -> None:
            check_digest(file, getattr(content, "sha256", ""))
            refer(connection, self._family_id, [(file.sha256, file.size_bytes, None)])

        incoming.commit(refer_family)

    async def store_manifest(self) -> Content:
        """Return the manifest as a content, for the transaction of the snapshot. Store it first if it is large."""
        assert self.manifest is not None
        content = self.manifest.content
        sha256 = hashlib.sha256(content).hexdigest()
        if is_inline(len(content)):
            return Content(sha256, len(content), content)
        file = KeptFile("", "100644", sha256, len(content))
        incoming = Incoming(self._database, self._storage)
        await asyncio.to_thread(incoming.write, content)
        await asyncio.to_thread(self._commit, incoming, file)
        return Content(sha256, len(content), None)


def check_digest(file: KeptFile, digest: str) -> None:
    """Raise ContentMissing if `digest` is not the listed one."""
    if digest != file.sha256:
        raise ContentMissing(f"the content of '{file.path}' is not the one that was listed")
