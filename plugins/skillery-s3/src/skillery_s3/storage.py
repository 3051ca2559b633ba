"""The storage `s3`. See `skillery.backends.Storage`."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

import obstore
from obstore.exceptions import AlreadyExistsError

from skillery.backends import Storage
from skillery.errors import ContentMissing
from skillery_s3.bucket import Bucket
from skillery_s3.download import S3Download
from skillery_s3.failures import is_missing, speaking
from skillery_s3.keys import MARK, NAMES, digest_in, key_of
from skillery_s3.unfinished import abort, list_unfinished
from skillery_s3.upload import S3Upload

BUFFER_BYTES = 64 * 1024
"""The buffer of a download. Larger reads are not copied into it."""


class S3Storage(Storage):
    """Stores contents as objects. An object becomes visible when it is complete."""

    def __init__(self, bucket: Bucket, folder: Path) -> None:
        """Store the parts. `folder` is for contents that are being received."""
        self._bucket = bucket
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def begin(self) -> S3Upload:
        return S3Upload(self._bucket, self._folder)

    def open(self, digest: str) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(S3Download(self._bucket, digest), BUFFER_BYTES))

    def local_path(self, digest: str) -> Path | None:
        return None

    def delete(self, digest: str) -> None:
        with suppress(ContentMissing), speaking("a deletion"):
            # Not repeated for long: the server calls again later, and expects that this request has no late effect.
            obstore.delete(self._bucket.quick, key_of(digest))

    def check(self) -> None:
        with speaking("a check"):
            self._read_mark(quick=True)

    def stored_before(self, time: datetime) -> Iterator[tuple[str, int]]:
        with speaking("a list of contents"):
            for page in obstore.list(self._bucket.store):
                for content in page:
                    digest = digest_in(content["path"])
                    if digest and content["last_modified"] < time:
                        yield digest, content["size"]

    def remove_unfinished(self, begun_before: datetime, dry_run: bool) -> int:
        with speaking("a sweep of unfinished uploads"):
            old = [upload for upload in list_unfinished(self._bucket) if upload.begun_at < begun_before]
            for upload in old if not dry_run else ():
                abort(self._bucket, upload)
        return len(old)

    def sign(self, digest: str, seconds: int, headers: Mapping[str, str]) -> str | None:
        if self._bucket.settings.encryption == "sse-c":
            return None  # the caller would need the key
        query = {f"response-{name.lower()}": value for name, value in headers.items()}
        with speaking("a signed address"):
            return self._bucket.sign("GET", key_of(digest), query, seconds)

    def mark(self, made: str) -> str:
        with speaking("the mark of the registry", stores=True):
            mark = self._read_mark()
            if mark is not None:  # a service may ignore the condition of the next request
                return mark
            with suppress(AlreadyExistsError):
                obstore.put(self._bucket.store, MARK, made.encode(), mode="create")
            return self._read_mark() or made

    def find_mark(self) -> str | None:
        with speaking("the mark of the registry"):
            return self._read_mark()

    def add_name(self, name: str) -> None:
        with speaking("the name of a backup", stores=True):
            obstore.put(self._bucket.store, f"{NAMES}/{name}", name.encode(), use_multipart=False)

    def names(self) -> Iterator[str]:
        with speaking("a list of names"):
            for page in obstore.list(self._bucket.store, NAMES):
                for item in page:
                    yield item["path"].rpartition("/")[2]

    def remove_name(self, name: str) -> None:
        with suppress(ContentMissing), speaking("a deletion"):
            obstore.delete(self._bucket.quick, f"{NAMES}/{name}")

    def _read_mark(self, *, quick: bool = False) -> str | None:
        """Return the id in the mark of this bucket, or None if the bucket has no mark."""
        store = self._bucket.quick if quick else self._bucket.store
        try:
            return bytes(obstore.get(store, MARK).bytes()).decode()
        except FileNotFoundError as error:
            if is_missing(error):
                return None
            raise
