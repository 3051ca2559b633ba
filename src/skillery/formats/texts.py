"""Short texts of callers (sentences, ids, contents in base64), and random ids."""

from __future__ import annotations

import base64
import binascii
import secrets
import string

from skillery.errors import InvalidParams


def parse_sentence(value: str, where: str) -> str:
    """Return `value` without surrounding blanks. Raise InvalidParams if `value` is blank or contains a NUL.

    `where` is the name of the parameter, for the error.
    """
    if "\0" in value or not value.strip():
        reason = "contains a NUL character" if "\0" in value else "is blank"
        raise InvalidParams(f"'{where}' {reason}", hint="Write a sentence.", param=where)
    return value.strip()


def parse_id(text: str) -> str:
    """Return the id unchanged. Raise InvalidParams if it contains a NUL."""
    if "\0" in text:
        raise InvalidParams(
            "an id cannot contain a NUL character", hint="Pass the id unchanged, as a method returned it.", param="id"
        )
    return text


def parse_identity(name: str) -> str:
    """Return the name. Raise InvalidParams if the name contains a NUL. Any other name is valid, because
    authenticators choose the names.
    """
    if "\0" in name:
        raise InvalidParams(
            "'identity' contains a NUL character", hint="Write the name of an identity.", param="identity"
        )
    return name


def decode_content(content: str, encoding: str, where: str) -> bytes:
    """Return the bytes of `content`, which is plain text or base64. Raise InvalidParams if it is not valid base64.

    `where` is the name of the parameter, for the error.
    """
    if encoding == "utf-8":
        return content.encode("utf-8")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParams(
            f"'{where}' is not valid base64", hint="Leave 'encoding' out for plain text.", param=where
        ) from None


def parse_plain(text: str, where: str) -> str:
    """Return the text unchanged. Raise InvalidParams if it contains a NUL.

    `where` is the name of the parameter, for the error.
    """
    if "\0" in text:
        raise InvalidParams(f"'{where}' contains a NUL character", hint="Leave it out.", param=where)
    return text


# -- Random identifiers: opaque, safe in URLs and file names, with at least 128 random bits ----------------------------


_ALPHABET = string.digits + string.ascii_letters
_LENGTH = 22  # 62 ** 22 > 2 ** 130


_FAIR = 256 - 256 % len(_ALPHABET)
# The letter of each byte. Bytes over the highest multiple of 62 are left out: they would make some letters more likely.
_LETTERS = (_ALPHABET * (256 // len(_ALPHABET) + 1)).encode()[:256]
_UNFAIR = bytes(range(_FAIR, 256))


def _random() -> str:
    letters = ""
    while len(letters) < _LENGTH:
        letters += secrets.token_bytes(32).translate(_LETTERS, _UNFAIR).decode()
    return letters[:_LENGTH]


def new_run_id() -> str:
    return f"run_{_random()}"


def new_blob_id() -> str:
    return f"blob:{_random()}"
