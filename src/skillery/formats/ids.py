"""Random identifiers: opaque, safe in URLs and file names, with at least 128 random bits."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 22  # 62 ** 22 > 2 ** 130


_FAIR = 256 - 256 % len(_ALPHABET)
# The letter of each byte. Bytes over the highest multiple of 62 are left out: they would make some letters more likely.
_LETTERS = (_ALPHABET * (256 // len(_ALPHABET) + 1)).encode()[:256]
_UNFAIR = bytes(range(_FAIR, 256))


def _random() -> str:
    found = ""
    while len(found) < _LENGTH:
        found += secrets.token_bytes(32).translate(_LETTERS, _UNFAIR).decode()
    return found[:_LENGTH]


def new_run_id() -> str:
    return f"run_{_random()}"


def new_blob_id() -> str:
    return f"blob:{_random()}"
