"""Random identifiers: opaque, safe in URLs and file names, with at least 128 random bits."""

from __future__ import annotations

import secrets
import string

_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 22  # 62 ** 22 > 2 ** 130


_FAIR = 256 - 256 % len(_ALPHABET)


def _random() -> str:
    found = ""
    while len(found) < _LENGTH:
        # One system call for all letters. Bytes over the highest multiple of 62 would make some letters more likely.
        found += "".join([_ALPHABET[byte % len(_ALPHABET)] for byte in secrets.token_bytes(32) if byte < _FAIR])
    return found[:_LENGTH]


def new_run_id() -> str:
    return f"run_{_random()}"


def new_blob_id() -> str:
    return f"blob:{_random()}"
