"""A kept log that callers read by offsets."""

from __future__ import annotations

from collections import deque

from cellblock.host.logs import KeptLog


class ReadableLog(KeptLog):
    """A log with offsets, which count all added bytes, also dropped ones."""

    @classmethod
    def of(cls, head: bytes, tail: bytes, dropped: int) -> ReadableLog:
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

    def skip(self, count: int) -> None:
        """Count `count` missing bytes as dropped. Drop the present tail too: a new tail starts after the missing
        bytes.
        """
        if count > 0:
            self._dropped += self._tail_size + count
            self._tail.clear()
            self._tail_size = 0

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
        piece, skipped = bytearray(), behind - wanted
        for block in reversed(blocks):
            piece += block[skipped : skipped + size - len(piece)] if skipped else block[: size - len(piece)]
            skipped = 0
            if len(piece) >= size:
                break
        return bytes(piece)
