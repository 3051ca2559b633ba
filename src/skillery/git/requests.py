"""Requests to `git-upload-pack`, in protocol v0 or v1 (gitprotocol-pack) or v2 (gitprotocol-v2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from skillery.git_views import Depth, Filter, Selection

# -- The pkt-line format of git (gitprotocol-common): a length of four hex digits, then the text of the line -----------


MOST_LINES = 65_536
"""The maximum number of lines of a request. A client sends a line for each branch, tag and commit that it names."""
_LENGTH = re.compile(rb"[0-9a-fA-F]{4}")


class Mark(Enum):
    """A special pkt-line without text."""

    FLUSH = b"0000"
    DELIMITER = b"0001"
    RESPONSE_END = b"0002"


class MalformedRequest(Exception):
    """Raised if a request breaks the protocol. The argument is the reason, which Git shows to its user."""


def pkt(text: str | bytes) -> bytes:
    """Return `text` as a pkt-line."""
    data = text.encode() if isinstance(text, str) else text
    return b"%04x%b" % (len(data) + 4, data)


def read_lines(body: bytes) -> Iterator[bytes | Mark]:
    """Yield the texts of the pkt-lines, without the newline at their end. Raise MalformedRequest."""
    position = count = 0
    while position < len(body):
        count += 1
        if count > MOST_LINES:
            raise MalformedRequest(f"a request has at most {MOST_LINES} lines")
        digits = body[position : position + 4]
        if not _LENGTH.fullmatch(digits):
            raise MalformedRequest("a line does not begin with its length")
        length = int(digits, 16)
        if length < 4:
            try:
                yield Mark(digits)
            except ValueError:
                raise MalformedRequest("a line is too short") from None
            position += 4
            continue
        if position + length > len(body):
            raise MalformedRequest("the last line is cut off")
        yield body[position + 4 : position + length].removesuffix(b"\n")
        position += length


_ID = re.compile(rb"[0-9a-f]{40}")
_NUMBER = re.compile(rb"[0-9]{1,12}")
_LIMIT = re.compile(r"([0-9]{1,12})([kKmMgG]?)")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
MOST_PREFIXES = 1024
MOST_WITHOUT = 1024


class Fetch(NamedTuple):
    """A request for objects."""

    selection: Selection
    is_done: bool
    """Whether the client has sent all commits that it has."""
    has_round: bool = False
    """Only v0: whether the client has sent some commits that it has, and waits for an answer to them."""
    capabilities: frozenset[str] = frozenset()
    """Only v0: the capabilities that the client uses."""


class ListRefs(NamedTuple):
    """A v2 request for branches and tags."""

    symrefs: bool
    prefixes: tuple[str, ...]
    """Only names with one of these prefixes are listed. () lists all names."""


class _Fields:
    """The fields of a request for objects, filled line by line."""

    def __init__(self) -> None:
        self.wants: list[str] = []
        self.haves: list[str] = []
        self.shallow: list[str] = []
        self.without: list[str] = []
        self.commits: int | None = None
        self.since: int | None = None
        self.is_relative = False
        self.filter = Filter()
        self.is_done = False

    def take(self, line: bytes) -> bool:
        """Read a line into the fields. Return False if it is no field of a request for objects. Raise
        MalformedRequest.
        """
        word, _, rest = line.partition(b" ")
        match word:
            case b"want":
                self.wants.append(_id(rest))
            case b"have":
                self.haves.append(_id(rest))
            case b"shallow":
                self.shallow.append(_id(rest))
            case b"deepen":
                # 0 is a request without a limit.
                self.commits = _number(rest) or None
            case b"deepen-since":
                self.since = _number(rest)
            case b"deepen-not":
                self.without.append(_text(rest))
                if len(self.without) > MOST_WITHOUT:
                    raise MalformedRequest(f"this server takes at most {MOST_WITHOUT} names of deepen-not")
            case b"deepen-relative":
                self.is_relative = True
            case b"filter":
                self.filter = parse_filter(_text(rest))
            case b"done":
                self.is_done = True
            case _:
                return False
        return True

    def selection(self) -> Selection:
        """Return the fields as a Selection."""
        depth = Depth(self.commits, self.is_relative, self.since, tuple(dict.fromkeys(self.without)))
        return Selection(self.wants, self.haves, self.shallow, depth, self.filter)


def parse_v2(body: bytes) -> Fetch | ListRefs | None:
    """Return the v2 request in a body, or None if it has no command. Raise MalformedRequest."""
    lines = read_lines(body)
    command = b""
    end = Mark.FLUSH
    for line in lines:
        if isinstance(line, Mark):
            end = line
            break
        if line.startswith(b"command="):
            command = line.removeprefix(b"command=")
        elif line.startswith(b"object-format=") and line != b"object-format=sha1":
            raise MalformedRequest("this server has only objects with SHA-1")
    arguments = _until_flush(lines) if end is Mark.DELIMITER else iter(())
    match command:
        case b"":
            return None
        case b"ls-refs":
            return _list_refs(arguments)
        case b"fetch":
            return _fetch(arguments)
    raise MalformedRequest("this server knows the commands ls-refs and fetch")


def parse_v0(body: bytes) -> Fetch | None:
    """Return the v0 or v1 request in a body, or None if the client wants nothing. Raise MalformedRequest."""
    lines = read_lines(body)
    fields = _Fields()
    capabilities: frozenset[str] = frozenset()
    for line in _until_flush(lines):
        field = line
        if line.startswith(b"want ") and not fields.wants:
            # The first line also has the capabilities.
            words = line.split(b" ")
            field = b" ".join(words[:2])
            capabilities = frozenset(_text(word) for word in words[2:])
        if field.startswith((b"have ", b"done")) or not fields.take(field):
            raise MalformedRequest("a line before the first flush is unknown")
    if not fields.wants:
        return None
    has_round = False
    for later in lines:
        if isinstance(later, Mark):
            has_round = has_round or bool(fields.haves)
            continue
        if not later.startswith(b"have ") and later != b"done":
            raise MalformedRequest("a line behind the first flush is unknown")
        fields.take(later)
        if fields.is_done:
            break
    fields.is_relative = "deepen-relative" in capabilities
    return Fetch(fields.selection(), fields.is_done, has_round, capabilities)


def parse_filter(text: str) -> Filter:
    """Return the filter of a partial clone. Raise MalformedRequest if this server does not know it."""
    if text == "blob:none":
        return Filter(blobs_over=0)
    if text == "tree:0":
        return Filter(trees=True)
    limit = _LIMIT.fullmatch(text.removeprefix("blob:limit="))
    if text.startswith("blob:limit=") and limit is not None:
        return Filter(blobs_over=int(limit[1]) * _UNITS[limit[2].lower()])
    raise MalformedRequest(
        f"the filter {text[:100]!r} is unknown here; this server knows blob:none, blob:limit=N and tree:0"
    )


def _fetch(arguments: Iterator[bytes]) -> Fetch:
    fields = _Fields()
    for line in arguments:
        # Unknown arguments are ignored: clients send `thin-pack`, `no-progress`, `include-tag` and `ofs-delta`.
        fields.take(line)
    return Fetch(fields.selection(), fields.is_done)


def _list_refs(arguments: Iterator[bytes]) -> ListRefs:
    symrefs = False
    prefixes: list[str] = []
    for line in arguments:
        symrefs = symrefs or line == b"symrefs"
        if line.startswith(b"ref-prefix "):
            prefixes.append(_text(line.removeprefix(b"ref-prefix ")))
    # More prefixes than any client sends cost more than a complete list.
    return ListRefs(symrefs, tuple(prefixes) if len(prefixes) <= MOST_PREFIXES else ())


def _until_flush(lines: Iterator[bytes | Mark]) -> Iterator[bytes]:
    for line in lines:
        if isinstance(line, Mark):
            return
        yield line


def _id(text: bytes) -> str:
    if not _ID.fullmatch(text):
        raise MalformedRequest("an object id has not 40 hex digits")
    return text.decode()


def _number(text: bytes) -> int:
    if not _NUMBER.fullmatch(text):
        raise MalformedRequest("a depth or a time is not a number")
    return int(text)


def _text(text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise MalformedRequest("a line is not UTF-8") from None
