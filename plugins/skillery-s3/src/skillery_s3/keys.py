"""The keys of objects, below the prefix: `ab/abcd…` for the content with this SHA-256, as files of `directory`."""

from __future__ import annotations

import re

from skillery.errors import ContentMissing

MARK = "registry"
"""The key of the mark, which ties the bucket to one database."""
NAMES = "names"
"""The folder of the names of backups."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"([0-9a-f]{2})/(\1[0-9a-f]{62})")


def key_of(digest: str) -> str:
    """Return the key of a content. Raise ContentMissing if `digest` is not a digest: other text never becomes a key."""
    if not _DIGEST.fullmatch(digest):
        raise ContentMissing("not the SHA-256 of a content")
    return f"{digest[:2]}/{digest}"


def digest_in(key: str) -> str | None:
    """Return the digest of the content with this key, or None if it is not the key of a content."""
    match = _KEY.fullmatch(key)
    return match[2] if match else None
