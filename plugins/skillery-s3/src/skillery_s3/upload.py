"""Uploads: a content is received into a nameless file of the home, and sent when its digest is known."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import IO, cast

import obstore

from skillery.errors import StorageFull, Unavailable, is_disk_full
from skillery_s3.bucket import Bucket
from skillery_s3.failures import reason_of, speaking
from skillery_s3.keys import key_of
from skillery_s3.settings import MIB

IN_MEMORY = MIB
"""Contents up to this size need no file."""
TRIES = 3
DAMAGED = {"BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest", "XAmzContentChecksumMismatch", "RequestTimeout"}
"""Codes of the service if the bytes were changed or lost on the way. The client does not repeat such requests."""


class S3Upload:
    """A content that is being stored.

    S3 cannot rename an object, and its key contains the digest, which is known at the end. So the content waits in a
    file without a name, which a crash cannot leave behind. A request that fails is repeated from this file.
    """

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        self._bucket = bucket
        # `commit` and `abort` close the file.
        self._file = cast(IO[bytes], tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(folder)))  # noqa: SIM115
        self._size = 0

    def write(self, chunk: bytes) -> None:
        try:
            self._file.write(chunk)
        except OSError as error:
            raise _not_received(error) from error
        self._size += len(chunk)

    def commit(self, digest: str) -> None:
        key = key_of(digest)
        with speaking("an upload", stores=True):
            for tries_left in reversed(range(TRIES)):
                try:
                    self._send(key)
                    break
                except obstore.exceptions.BaseError as error:
                    if not tries_left or reason_of(error).code not in DAMAGED:
                        raise
        self._file.close()

    def abort(self) -> None:
        self._file.close()

    def _send(self, key: str) -> None:
        """Send the received content as one request, or in parts if it is large."""
        settings = self._bucket.settings
        self._file.seek(0, os.SEEK_SET)
        part_bytes = settings.part_mb * MIB
        if self._size <= part_bytes:
            obstore.put(self._bucket.store, key, self._file.read(), use_multipart=False)
            return
        obstore.put(
            self._bucket.store, key, self._file, use_multipart=True, chunk_size=part_bytes,
            max_concurrency=settings.parts_at_once,
        )  # fmt: skip


def _not_received(error: OSError) -> Unavailable:
    if is_disk_full(error):
        return StorageFull()
    return Unavailable("the storage cannot be written now", hint="Nothing was stored. Try again.")
