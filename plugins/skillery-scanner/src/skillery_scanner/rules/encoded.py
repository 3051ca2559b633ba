"""Encoded texts: Base64 and hexadecimal in a file are decoded, and the result is searched with the rules for text."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator

from skillery_scanner.catalog import Match
from skillery_scanner.rules.instructions import instructions
from skillery_scanner.rules.shell import commands
from skillery_scanner.texts import excerpt, lines_of

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{32,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){24,}|(?:\\x[0-9a-fA-F]{2}){12,}")
MOST_ENCODED = 200
"""Encoded texts of a file that are decoded."""
MOST_DECODED = 20_000
_READABLE = 0.95


def encoded_text(path: str, text: str) -> Iterator[Match]:
    """Yield encoded texts that decode to commands or to instructions against the user."""
    if not (_BASE64.search(text) or _HEX.search(text)):
        return
    texts_left = MOST_ENCODED
    for piece in lines_of(text):
        if len(piece.text) < 32:
            continue
        for decoded in _decoded(piece.text):
            texts_left -= 1
            if texts_left < 0:
                return
            match = next(commands(path, decoded), None) or next(instructions(path, decoded), None)
            if match is not None:
                yield Match("encoded-text", path, piece.numbers[0], excerpt(decoded))
                break


def _decoded(line: str) -> Iterator[str]:
    for match in _BASE64.finditer(line):
        text = _readable(_from_base64(match[0]))
        if text:
            yield text
    for match in _HEX.finditer(line):
        text = _readable(bytes.fromhex(match[0].replace("\\x", "")[:MOST_DECODED]))
        if text:
            yield text


def _from_base64(encoded: str) -> bytes:
    normal = encoded.rstrip("=").translate(str.maketrans("-_", "+/"))[:MOST_DECODED]
    try:
        return base64.b64decode(normal + "=" * (-len(normal) % 4))
    except (binascii.Error, ValueError):
        return b""


def _readable(content: bytes) -> str:
    """Return the content as text, or "" if most of it is not readable."""
    for encoding in ("utf-8", "utf-16-le"):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        if (
            text
            and text.isascii()
            and sum(letter.isprintable() or letter.isspace() for letter in text) / len(text) > _READABLE
        ):
            return text
    return ""
