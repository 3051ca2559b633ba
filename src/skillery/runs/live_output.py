"""The output of an active run: its log without secrets, kept as it arrives, and its progress.

Offsets count the bytes of the log after secrets are removed. They stay valid when the run has ended and its log is
stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec

from skillery.backends import Log, Progress
from skillery.context.queue import PackageWait
from skillery.runs.readable_log import ReadableLog
from skillery.runs.redaction import RedactedStream, Redaction
from skillery.runs.results import EndStatus

# Text from a sandbox in the form that callers see: printable and of limited length. Any such text may be hostile.


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
    half = (LOGS_PREVIEW_BYTES - 64) // 2  # 64 bytes for the line between the two halves
    first, last = _fitting(head, half, _start), _fitting(tail, half, _end)
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


def _fitting(text: bytes, size: int, cut: Callable[[bytes, int], bytes]) -> bytes:
    """Return a start or end of `text` with at most `size` bytes in displayable form. `cut` is `_start` or `_end`."""
    piece = cut(text, size)
    return piece if len(_decoded(piece).encode()) <= size else cut(text, size // LONGEST_DISPLAYED)


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


LONGEST_CHARACTER = 4
"""Bytes of the longest character in UTF-8."""
COLLECTED_SECONDS = 0.05
COLLECTED_BYTES = 64 * 1024
PROGRESS_CHARACTERS = 500


class LogPart(msgspec.Struct, frozen=True):
    """A part of a log."""

    text: str
    """Printable text: control characters are escaped."""
    start: int
    """The offset of the first byte of the text. It is larger than the requested offset if the bytes between were
    dropped.
    """
    next: int
    """The offset after the last byte of the text."""


def log_part(start: int, content: bytes, *, may_continue: bool) -> LogPart:
    """Return `content` as printable text. `start` is its offset in the log.

    If `may_continue`, a partial character at the end is left for the next part.
    """
    size = len(content)
    if may_continue:
        size -= _partial_character(content)
    return LogPart(displayable(content[:size].decode("utf-8", "replace")), start, start + size)


def _partial_character(content: bytes) -> int:
    """Return the number of bytes at the end of `content` that begin a UTF-8 character without completing it."""
    for from_end in range(1, min(LONGEST_CHARACTER, len(content)) + 1):
        byte = content[-from_end]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 if byte < 0x80 else 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4
        return from_end if length > from_end else 0
    return 0


class Shown(Progress, frozen=True):
    """The progress of a run, in the form in which other servers read it from the database."""

    packages: PackageWait | None = None


class LiveOutput:
    """The log and the progress of one run, from its first byte. At most `limit` bytes of the log are kept in memory."""

    def __init__(self, limit: int) -> None:
        self._kept = ReadableLog(limit)
        self._stream: RedactedStream | None = None
        self._undecided = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._waiting_for_end: set[asyncio.Future[None]] = set()
        self.progress: Progress | None = None
        """The last progress that the code reported. Before the code starts, the progress of its packages as text."""
        self.packages: PackageWait | None = None
        """The packages that the run waits for, or None if it does not wait for packages."""
        self.status: EndStatus | None = None
        """The status of the ended run, or None if the run is active."""
        self._latest: tuple[tuple[int, int, int, bool], LogPart] | None = None
        """The last part that was read, with the arguments and state of the read. Many clients read the same parts at
        the same time.
        """
        self.is_used = False
        """True if the sandbox has passed on output while the code ran. Else the log comes with the outcome."""
        self.notes = b""
        """Lines of the server that wait for the first output of the code."""

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended. Nothing is added to the log after that."""
        return self.status is not None

    @property
    def end(self) -> int:
        """The offset after the last byte of the log."""
        return self._kept.end

    def redact(self, redaction: Redaction) -> None:
        """Remove secrets from all output that is added after this call."""
        self._redaction = redaction
        self._stream = RedactedStream(redaction)

    def note(self, lines: bytes) -> None:
        """Add `lines` of the server to the log.

        They precede the next output of the code. If the code never passes on output, they follow the log of the
        outcome.
        """
        if self.is_used:
            self.add(lines)
        else:
            self.notes += lines

    def add(self, piece: bytes) -> None:
        """Add output of the code to the log. The search for secrets may delay it by COLLECTED_SECONDS."""
        self.is_used = True
        piece, self.notes = self.notes + piece, b""
        if self._stream is None:
            self._keep(piece)
            return
        # A search for secrets takes the same time for one line as for many, so pieces are collected for a short time.
        self._undecided += piece
        if len(self._undecided) >= COLLECTED_BYTES:
            self._decide()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECTED_SECONDS, self._decide)

    def set_progress(self, progress: Progress) -> None:
        """Replace the progress, with secrets redacted and its text cut to PROGRESS_CHARACTERS. Wake the readers."""
        text = progress.text if self._stream is None else self._redaction.text(progress.text)
        self.progress = msgspec.structs.replace(progress, text=displayable(text)[:PROGRESS_CHARACTERS])
        _wake(self._waiting)

    def set_packages(self, packages: PackageWait | None) -> None:
        """Set the packages that the run waits for."""
        self.show(Shown(0.0, None, displayable(packages.text), packages) if packages is not None else None)

    @property
    def shown(self) -> Shown | None:
        """The progress for other servers."""
        progress = self.progress
        return None if progress is None else Shown(progress.done, progress.total, progress.text, self.packages)

    def show(self, shown: Shown | None) -> None:
        """Set the progress to the one that another server has passed on."""
        if shown != self.shown:
            self.packages = shown.packages if shown is not None else None
            self.progress = Progress(shown.done, shown.total, shown.text) if shown is not None else None
            _wake(self._waiting)

    def flush(self) -> None:
        """Add the bytes that may begin a secret and were held back. Call this when the code prints no more."""
        self._decide()
        if self._stream is not None:
            self._keep(self._stream.rest())

    def log(self) -> Log:
        """Return the log up to now."""
        return Log(*self._kept.parts())

    def finish(self, log: Log | None, status: EndStatus) -> None:
        """Set the status of the ended run, and wake all readers.

        `log` is the recorded log. It is None if no log was recorded, or if `add` has added the whole log.
        """
        if log is not None and not self.is_used:
            self._kept = ReadableLog.of(log.head, log.tail, log.dropped)
        if self._timer is not None:
            self._timer.cancel()
        self.status = status
        _wake(self._waiting)
        _wake(self._waiting_for_end)

    def parts(self, after: int, size: int | None) -> tuple[list[tuple[int, bytes]], int]:
        """Return the kept bytes from the offset `after`, at most `size` (None: all), and the offset after them.

        The bytes are a list of at most two pairs (offset, bytes). Between two pairs, bytes were dropped.
        """
        parts: list[tuple[int, bytes]] = []
        bytes_left = self.end if size is None else size
        while after < self.end and bytes_left > 0:
            start, content = self._kept.read(after, bytes_left)
            parts.append((start, content))
            after, bytes_left = start + len(content), bytes_left - len(content)
        return parts, after

    @property
    def gap(self) -> tuple[int, int]:
        """The range of dropped bytes: its first offset, and the offset after it. (0, 0) if no bytes were dropped."""
        return (0, 0) if self._kept.gap_start is None else (self._kept.gap_start, self._kept.tail_start)

    def skip_to(self, offset: int) -> None:
        """Record that the bytes up to `offset` are missing, because the server that executes the run dropped them."""
        self._kept.skip(offset - self._kept.end)

    def read(self, after: int, size: int) -> LogPart:
        """Return at most `size` bytes of the log from the offset `after`, or from the next kept byte."""
        state = (after, size, self.end, self.has_ended)
        if self._latest is None or self._latest[0] != state:
            start, content = self._kept.read(after, size)
            end_of_part = start + len(content)
            is_last = self.has_ended if end_of_part == self.end else end_of_part == self._kept.gap_start
            self._latest = state, log_part(start, content, may_continue=not is_last)
        return self._latest[1]

    def changed(self) -> asyncio.Future[None]:
        """Return a future that is done at the next change of the log or the progress, or at the end of the run."""
        return self._future(self._waiting)

    def ended(self) -> asyncio.Future[None]:
        """Return a future that is done at the end of the run."""
        return self._future(self._waiting_for_end)

    def _future(self, waiting: set[asyncio.Future[None]]) -> asyncio.Future[None]:
        """Return a future in the set `waiting`. The future is done at once if the run has ended."""
        future = asyncio.get_running_loop().create_future()
        if self.has_ended:
            future.set_result(None)
        else:
            waiting.add(future)
            future.add_done_callback(waiting.discard)
        return future

    def _decide(self) -> None:
        """Redact the collected output and add it to the log."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stream is not None and self._undecided:
            piece, self._undecided = bytes(self._undecided), bytearray()
            self._keep(self._stream.feed(piece))

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._kept.add(piece)
            _wake(self._waiting)


def _wake(waiting: set[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()
