"""Downloads: a content as a seekable stream, which is checked while it is read."""

from __future__ import annotations

import hashlib
import io
import logging
from typing import TYPE_CHECKING

from skillery.errors import Unavailable
from skillery_s3.bucket import Bucket
from skillery_s3.failures import speaking
from skillery_s3.keys import key_of
from skillery_s3.parts import FIRST_BYTES, Parts, receive

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

log = logging.getLogger(__name__)


class S3Download(io.RawIOBase):
    """A seekable stream of an object. If an answer breaks, its missing bytes are requested again.

    If the whole content is read in order, its SHA-256 is checked before its last bytes are returned. Other reads are
    checked only by TLS.
    """

    def __init__(self, bucket: Bucket, digest: str) -> None:
        super().__init__()
        self._parts: Parts | None = None  # first, because `close` is called even if the rest fails
        self._bucket, self._digest, self._key = bucket, digest, key_of(digest)
        self._position = 0
        self._hash: hashlib._Hash | None = hashlib.sha256()
        self._rest = memoryview(b"")
        with speaking("a download"):
            first_part, self._size = receive(bucket, self._key, 0, FIRST_BYTES)
        # The first bytes are checked when they are read, so that a damaged content can be opened and reported.
        self._first: memoryview | None = first_part

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence] + offset
        if position < 0:
            raise ValueError("negative position")
        if position != self._position:
            self._position, self._rest, self._hash = position, memoryview(b""), None
            self._first = None
            self._drop_parts()
        return position

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, at most `size`. Like `readinto`, with one copy fewer than the method of the class."""
        if size is None or size < 0:
            return self.readall()
        return bytes(self._taken(size))

    def readinto(self, buffer: WriteableBuffer) -> int:
        target = memoryview(buffer).cast("B")
        chunk = self._taken(len(target))
        target[: len(chunk)] = chunk
        return len(chunk)

    def _taken(self, most: int) -> memoryview:
        if not self._rest and self._position < self._size:
            self._rest = self._checked(self._next())
        chunk, self._rest = self._rest[:most], self._rest[most:]
        self._position += len(chunk)
        return chunk

    def close(self) -> None:
        if not self.closed:
            self._drop_parts()
        super().close()

    def _next(self) -> memoryview:
        if self._first is not None:
            first_part, self._first = self._first, None
            return first_part
        if self._parts is None:
            self._parts = Parts(self._bucket, self._key, self._position, self._size)
        with speaking("a download"):
            return self._parts.next()

    def _drop_parts(self) -> None:
        if self._parts is not None:
            self._parts.close()
            self._parts = None

    def _checked(self, chunk: memoryview) -> memoryview:
        """Return the chunk. Raise Unavailable if it ends a content with another digest."""
        if self._hash is not None:
            self._hash.update(chunk)
            if self._position + len(chunk) == self._size and self._hash.hexdigest() != self._digest:
                log.error("the service answered other bytes than were stored under %s", self._digest)
                raise Unavailable("the content was damaged on its way from the storage", hint="Try again.")
        return chunk
