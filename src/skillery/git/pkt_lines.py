"""The pkt-line format of git (gitprotocol-common): a length of four hex digits, then the text of the line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

MOST_DATA = 65_516
"""Most bytes of the text of a line."""
MOST_LINES = 65_536
"""Most lines of a request. A client sends one for each branch, tag and commit that it names."""
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")


class Mark(Enum):
    """A line without a text."""

    FLUSH = b"0000"
    DELIMITER = b"0001"
    RESPONSE_END = b"0002"


class MalformedRequest(Exception):
    """Raised for a request that breaks the protocol. The argument is the reason, for the user of the client."""


def pkt(text: str | bytes) -> bytes:
    """Return a line."""
    data = text.encode() if isinstance(text, str) else text
    return b"%04x%b" % (len(data) + 4, data)


def read_lines(body: bytes) -> Iterator[bytes | Mark]:
    """Yield the texts of the lines, without the newline at their end. Raise MalformedRequest."""
    at = count = 0
    while at < len(body):
        count += 1
        if count > MOST_LINES:
            raise MalformedRequest(f"a request has at most {MOST_LINES} lines")
        digits = body[at : at + 4]
        if not _LENGTH.fullmatch(digits):
            raise MalformedRequest("a line does not begin with its length")
        length = int(digits, 16)
        if length < 4:
            try:
                yield Mark(digits)
            except ValueError:
                raise MalformedRequest("a line is too short") from None
            at += 4
            continue
        if at + length > len(body):
            raise MalformedRequest("the last line is cut off")
        yield body[at + 4 : at + length].removesuffix(b"\n")
        at += length
