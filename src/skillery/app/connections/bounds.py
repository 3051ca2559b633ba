"""The bounds of one connection."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection. Sizes are in bytes, times in seconds."""

    head_bytes: int = 64 * KIB
    head_seconds: float = 30
    """From connecting, later from the first byte of the head, until the end of the head."""
    headers: int = 256
    """Headers of one request. Each takes about a hundred bytes of memory, however short it is."""
    framing_bytes: int = 16 * KIB
    framing_seconds: float = 10
    """Chunk sizes, chunk extensions and trailers: all that follows a byte of the body and is no body itself."""
    pipelined: int = 16
    """Requests that wait for the answer of an earlier one."""
    window_seconds: float = 90
    least_bytes_per_second: int = KIB
    """A body that is read, and an answer that waits to be sent, keep this rate over each window."""
    linger_bytes: int = 16 * MIB
    linger_seconds: float = 10
    """Input that is discarded after the last answer, so that a client that is still sending can read this answer."""

    @property
    def least_bytes(self) -> float:
        """The fewest bytes in one window."""
        return self.least_bytes_per_second * self.window_seconds
