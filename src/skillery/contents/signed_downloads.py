"""Addresses under which callers download contents directly from the storage."""

from __future__ import annotations

from collections.abc import Mapping

from skillery.backends import SignsDownloads, Storage
from skillery.contents.kept_contents import KeptContents, MadeContent
from skillery.contents.store import is_inline
from skillery.database import Database


class SignedDownloads:
    """Signs addresses of contents, if the server allows it and the storage can."""

    def __init__(self, database: Database, storage: Storage, seconds: int) -> None:
        """Store the parts. `seconds` is the time for which an address is valid; 0: the server signs no addresses."""
        self._signs = storage if seconds and isinstance(storage, SignsDownloads) else None
        self._kept = KeptContents(database, storage)
        self._seconds = seconds

    def covers(self, size_bytes: int) -> bool:
        """Return whether contents of this size can be downloaded from the storage. Small ones are in the database."""
        return self._signs is not None and not is_inline(size_bytes)

    def address(self, sha256: str, headers: Mapping[str, str], made: MadeContent | None = None) -> str | None:
        """Return the address of a content, or None if the storage signs none. Blocking.

        `headers` has the headers `content-type` and `content-disposition` of the answer. A content that the server
        makes itself (`made`) is stored first. Raise Unavailable if the storage fails.
        """
        if self._signs is None:
            return None
        signed = self._signs.sign(sha256, self._seconds, headers)
        if signed is not None and made is not None:
            self._kept.keep(sha256, headers["content-type"], self._seconds, made)
        return signed
