"""A log with limited memory: its head and its tail are kept. Offsets count all added bytes, also dropped ones."""

from __future__ import annotations

from collections import deque

BLOCK = 4096
"""Pieces smaller than this are joined, because each separate piece needs extra memory."""


class KeptLog:
    """Keeps at most `limit` bytes of a log: one half for the first bytes, one half for the last bytes."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._dropped = 0

    @classmethod
    def of(cls, head: bytes, tail: bytes, dropped: int) -> KeptLog:
        """Return a log from the values that `parts` returned. Add no pieces to such a log: they would be dropped."""
        kept = cls(0)
        kept._head, kept._tail = bytearray(head), deque([bytearray(tail)])
        kept._tail_size, kept._dropped = len(tail), dropped
        return kept

    @property
    def gap_start(self) -> int | None:
        """The offset of the first dropped byte, or None if no byte was dropped."""
        return len(self._head) if self._dropped else None

    @property
    def end(self) -> int:
        """The number of added and skipped bytes."""
        return self.tail_start + self._tail_size

    @property
    def tail_start(self) -> int:
        """The offset of the first byte of the tail. The bytes between the head and this offset were dropped."""
        return len(self._head) + self._dropped

    def add(self, piece: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0 and not self._dropped:
            self._head += piece[:room]
            piece = piece[room:]
        if piece:
            if self._tail and len(self._tail[-1]) < BLOCK:
                self._tail[-1] += piece
            else:
                self._tail.append(bytearray(piece))
            self._tail_size += len(piece)
            self._trim()

    def skip(self, count: int) -> None:
        """Count `count` missing bytes as dropped. Drop the present tail too: a new tail starts after the missing
        bytes.
        """
        if count > 0:
            self._dropped += self._tail_size + count
            self._tail.clear()
            self._tail_size = 0

    def _trim(self) -> None:
        while self._tail_size > self._half:
            surplus = self._tail_size - self._half
            first = self._tail[0]
            cut = min(surplus, len(first))
            if cut < len(first):
                del first[:cut]
            else:
                self._tail.popleft()
            self._tail_size -= cut
            self._dropped += cut

    def read(self, after: int, size: int) -> tuple[int, bytes]:
        """Return the first kept offset that is at least `after`, and at most `size` bytes from this offset.

        If `after` is beyond the end of the log, return `end` and no bytes. If bytes were dropped, a piece that starts
        in the head ends at the end of the head.
        """
        if after < len(self._head):
            piece = bytes(self._head[after : after + size])
            if self._dropped or len(piece) == size:
                return after, piece
            return after, piece + self._tail_from(len(self._head), size - len(piece))
        start = min(max(after, self.tail_start), self.end)
        return start, self._tail_from(start, size)

    def _tail_from(self, start: int, size: int) -> bytes:
        """Return at most `size` bytes from the offset `start`, which is in the tail."""
        # Readers are usually near the end, so the blocks are searched from there.
        wanted, blocks, behind = self.end - start, [], 0
        for block in reversed(self._tail):
            if behind >= wanted:
                break
            blocks.append(block)
            behind += len(block)
        content, skipped = bytearray(), behind - wanted
        for block in reversed(blocks):
            content += block[skipped : skipped + size - len(content)] if skipped else block[: size - len(content)]
            skipped = 0
            if len(content) >= size:
                break
        return bytes(content)

    def parts(self) -> tuple[bytes, bytes, int]:
        """Return the head, the tail, and the number of bytes that were dropped between head and tail."""
        return bytes(self._head), b"".join(self._tail), self._dropped
