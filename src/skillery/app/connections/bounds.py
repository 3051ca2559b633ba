"""The limits of one connection."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one connection. Sizes are in bytes, times in seconds."""

    head_bytes: int = 64 * KIB
    head_seconds: float = 30
    """Longest time for a request head: from the connection, for later heads from the first byte, to the end of the
    head.
    """
    headers: int = 256
    """Most headers of a request. A header takes about a hundred bytes of memory, even if its text is short."""
    framing_bytes: int = 16 * KIB
    framing_seconds: float = 10
    """Longest time without a body byte in a chunked body: for chunk sizes, chunk extensions and trailers."""
    pipelined: int = 16
    """Most requests of one connection that wait for the response to an earlier request."""
    window_seconds: float = 90
    least_bytes_per_second: int = KIB
    """Lowest rate over each window, for request bodies and for responses."""
    linger_bytes: int = 16 * MIB
    linger_seconds: float = 10
    """Longest time for which input is discarded after the last response, while the client is still sending."""

    @property
    def least_bytes(self) -> float:
        """The smallest number of bytes that must pass in one window."""
        return self.least_bytes_per_second * self.window_seconds
