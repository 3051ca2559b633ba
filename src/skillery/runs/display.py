"""Text from a sandbox in the form that callers see: printable and of limited length. Any such text may be hostile."""

from __future__ import annotations

import re
from collections.abc import Callable

from skillery.backends import Log

LOGS_PREVIEW_BYTES = 2048
LONGEST_DISPLAYED = 4
r"""The maximum number of bytes that one byte needs in displayable form: `\x00`."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def displayable(text: str) -> str:
    """Return the text with control characters (except tab and line feed) escaped and lone surrogates replaced.

    The result is valid in JSON, databases and terminals.
    """
    text = text.replace("\r\n", "\n").encode("utf-8", "replace").decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def logs_preview(log: Log) -> str:
    """Return the log as text of at most LOGS_PREVIEW_BYTES.

    Of a longer log, return the start, the number of omitted bytes, and the end.
    """
    # Cut first, then replace characters: a log can have megabytes.
    head, tail = log.head, log.tail
    if not log.dropped:
        head = tail = log.head + log.tail
        decoded = _decoded(head[: LOGS_PREVIEW_BYTES + 1])
        if len(head) <= LOGS_PREVIEW_BYTES and len(decoded.encode()) <= LOGS_PREVIEW_BYTES:
            return decoded
    room = (LOGS_PREVIEW_BYTES - 64) // 2  # 64 bytes for the line between the two halves
    first, last = _fitting(head, room, _start), _fitting(tail, room, _end)
    omitted = len(log.head) + len(log.tail) + log.dropped - len(first) - len(last)
    return f"{_decoded(first)}\n… {omitted} bytes left out …\n{_decoded(last)}"


def whole_log(log: Log, preview: str) -> bytes | None:
    """Return the log as one text for storing, or None if `preview` is the same text.

    A line stands in place of dropped bytes.
    """
    if not log.dropped and len(log.head) + len(log.tail) <= LOGS_PREVIEW_BYTES:
        content = log.head + log.tail
        # Offsets count the bytes of the log. If the bytes of the preview differ, the log itself must be kept.
        return None if preview.encode() == content else content
    if not log.dropped:
        return log.head + log.tail
    return log.head + line_for_dropped(log.dropped) + log.tail


def line_for_dropped(dropped: int) -> bytes:
    """Return the line that stands in a stored log in place of `dropped` bytes."""
    return f"\n… {dropped} bytes were not kept …\n".encode()


def with_line(log: Log, line: str) -> Log:
    """Return the log with one more line at its end."""
    return with_text(log, f"{line}\n".encode())


def with_text(log: Log, end: bytes) -> Log:
    """Return the log with the bytes `end` appended."""
    return Log(log.head, log.tail + end, log.dropped) if log.dropped else Log(log.head + log.tail + end)


def marked(log: Log, name: str) -> bytes:
    """Return the lines of a log as one text, each line after `[name]`. `name` is the skill that wrote the log."""
    cut = [f"({log.dropped} bytes are not kept)".encode()] if log.dropped else []
    lines = [*log.head.splitlines(), *cut, *log.tail.splitlines()]
    return b"".join(b"[%s] %s\n" % (name.encode(), line) for line in lines)


def _fitting(text: bytes, room: int, cut: Callable[[bytes, int], bytes]) -> bytes:
    """Return a start or end of `text` with at most `room` bytes in displayable form. `cut` is `_start` or `_end`."""
    piece = cut(text, room)
    return piece if len(_decoded(piece).encode()) <= room else cut(text, room // LONGEST_DISPLAYED)


def _start(text: bytes, size: int) -> bytes:
    """Return at most the first `size` bytes, without a partial character at the end."""
    while 0 < size < len(text) and text[size] & 0xC0 == 0x80:
        size -= 1
    return text[:size]


def _end(text: bytes, size: int) -> bytes:
    """Return at most the last `size` bytes, without a partial character at the start."""
    start = max(0, len(text) - size)
    while 0 < start < len(text) and text[start] & 0xC0 == 0x80:
        start += 1
    return text[start:]


def _decoded(piece: bytes) -> str:
    return displayable(piece.decode("utf-8", "replace"))
