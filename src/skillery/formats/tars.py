"""The entries of a tar archive, read header by header in linear time (POSIX.1-2001 pax, and GNU tar).

All code that reads tar archives uses this module. Python's `tarfile` takes quadratic time or an endless loop for some
headers, depending on its release (CVE-2024-6232, CVE-2025-8194).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

BLOCK = 512
MAX_HEADER_BYTES = 256 * 1024
"""The maximum number of bytes of a long name or an extended header."""
MAX_HEADERS_BYTES = 2 * MAX_HEADER_BYTES
"""The maximum number of bytes of all headers of one entry."""
FILE, HARD_LINK, LINK, FOLDER, SPARSE = b"0", b"1", b"2", b"5", b"S"
_FILES = (b"0", b"\0", b"7")
_WITHOUT_CONTENT = b"123456"
_GLOBAL, _EXTENDED, _LONG_NAME, _LONG_TARGET = b"g", b"x", b"L", b"K"
_READ_WORDS = (b"path", b"linkpath", b"size")
_LONGEST_NUMBER = 20


class DamagedTar(Exception):
    """Raised for an archive that is damaged. The message is a clause after the archive's name. `last` is the name of
    the last entry with a complete header.
    """

    def __init__(self, subject: str, last: str | None = None) -> None:
        super().__init__(subject)
        self.what = subject
        self.last = last


class Member(NamedTuple):
    """An entry. Bytes of names that are not UTF-8 are lone surrogates."""

    name: str
    kind: bytes
    """FILE, HARD_LINK, LINK, FOLDER, SPARSE, or another type flag."""
    size: int
    mode: int
    target: str
    place: int
    """Where the content begins in the file."""
    time: int
    """Seconds since 1970."""


def read_members(file: BinaryIO) -> Iterator[Member]:
    """Yield the entries one after another. Raise DamagedTar if the archive is damaged, is cut off, or has headers of
    more than MAX_HEADERS_BYTES for one entry.
    """
    last_name: str | None = None
    try:
        for member in _members(file):
            last_name = member.name
            yield member
    except DamagedTar as error:
        error.last = error.last or last_name
        raise


def _members(file: BinaryIO) -> Iterator[Member]:
    """Yield the entries, with the pax and GNU headers before each entry applied to it."""
    file_size = file.seek(0, 2)
    global_words: dict[bytes, bytes] = {}
    position = 0
    while True:
        words, headers = dict(global_words), 0
        while True:
            block = _read(file, position, BLOCK)
            if not block.strip(b"\0"):
                return
            kind, size, position = _checked(block), _number(block[124:136]), position + BLOCK
            if kind not in (_GLOBAL, _EXTENDED, _LONG_NAME, _LONG_TARGET):
                break
            if size > MAX_HEADER_BYTES:
                raise DamagedTar(f"has a header of more than {MAX_HEADER_BYTES} bytes")
            headers += BLOCK + size
            if headers > MAX_HEADERS_BYTES:
                raise DamagedTar(f"has headers of more than {MAX_HEADERS_BYTES} bytes for one entry")
            content, position = _read(file, position, size), position + _padded(size)
            if kind == _GLOBAL:
                global_words |= _words(content)
                words = global_words | words
            elif kind == _EXTENDED:
                words |= _words(content)
            else:
                words[b"path" if kind == _LONG_NAME else b"linkpath"] = content.split(b"\0", 1)[0]
        member = _member(block, kind, words, position)
        content_bytes = 0 if member.kind in _WITHOUT_CONTENT else member.size
        if member.place + content_bytes > file_size:
            raise DamagedTar("is cut off", member.name)
        yield member
        position += _padded(content_bytes)


def _read(file: BinaryIO, position: int, size: int) -> bytes:
    file.seek(position)
    content = file.read(size)
    if len(content) < size:
        raise DamagedTar("is cut off")
    return content


def _padded(size: int) -> int:
    return size + -size % BLOCK


def _checked(block: bytes) -> bytes:
    """Return the type flag of a header. Raise DamagedTar if its checksum is wrong."""
    if _number(block[148:156]) != sum(block[:148]) + sum(block[156:]) + 8 * ord(" "):
        raise DamagedTar("is damaged: the checksum of a header is wrong")
    return block[156:157]


def _number(field: bytes) -> int:
    """Return a number in octal digits, or in the base-256 of GNU tar."""
    if field[0] & 0x80:
        number = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or number >= 1 << 63:
            raise DamagedTar("is damaged: an entry has a negative size")
        return number
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise DamagedTar("is damaged: a number of a header has other characters than digits")
    return int(digits or b"0", 8)


def _words(content: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header that change how an entry is read. A record is `LENGTH WORD=VALUE\\n`."""
    words: dict[bytes, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        space = content.find(b" ", at, at + _LONGEST_NUMBER)
        digits = content[at : max(at, space)]
        end = at + int(digits) if digits.isdigit() else 0
        equals = content.find(b"=", space, end)
        if equals < 0 or end > len(content) or content[end - 1 : end] != b"\n":
            raise DamagedTar("is damaged: an extended header has a broken record")
        word = content[space + 1 : equals]
        if word in _READ_WORDS:
            words[word] = content[equals + 1 : end - 1]
        elif word.startswith(b"GNU.sparse."):
            words[b"sparse"] = b""
        at = end
    return words


def _member(block: bytes, kind: bytes, words: dict[bytes, bytes], content_start: int) -> Member:
    """Return the entry of a header block. `words` are the values of pax and GNU headers, which replace those of the
    block.
    """
    name, target = (block[start : start + 100].split(b"\0", 1)[0] for start in (0, 157))
    if block[257:263] == b"ustar\0" and (prefix := block[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    name, target = words.get(b"path", name), words.get(b"linkpath", target)
    size = _number(block[124:136])
    if (size_text := words.get(b"size")) is not None:
        if not size_text.isdigit() or len(size_text) > _LONGEST_NUMBER:
            raise DamagedTar("is damaged: an extended header has a size that is not a number")
        size = int(size_text)
    if kind in _FILES:
        kind = FOLDER if kind == b"\0" and name.endswith(b"/") else FILE
    if b"sparse" in words:
        kind = SPARSE
    return Member(_text(name), kind, size, _number(block[100:108]), _text(target), content_start, _time(block))


def _time(block: bytes) -> int:
    """Return the time in a header, or 0 if it is not valid: no entry is refused for its time."""
    try:
        return _number(block[136:148])
    except DamagedTar:
        return 0


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
