"""Random identifiers: opaque, safe in URLs and file names, with at least 128 random bits."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 22  # 62 ** 22 > 2 ** 130


def _random() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


def new_run_id() -> str:
    return f"run_{_random()}"


def new_blob_id() -> str:
    return f"blob:{_random()}"
