"""Limits of one connection."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection. Sizes are in bytes, times in seconds."""

    head_bytes: int = 64 * KIB
    head_seconds: float = 30
    """Time from connecting, later from the first byte of a head, to the end of the head."""
    headers: int = 256
    """Headers per request. Each header takes about a hundred bytes of memory, however short."""
    framing_bytes: int = 16 * KIB
    framing_seconds: float = 10
    """Limits of chunk sizes, chunk extensions and trailers: everything after a byte of the body that is not body."""
    pipelined: int = 16
    """Requests that wait for the response to an earlier request."""
    window_seconds: float = 90
    least_bytes_per_second: int = KIB
    """Least rate over each window, for a body that is read and for a response that is sent."""
    linger_bytes: int = 16 * MIB
    linger_seconds: float = 10
    """Input discarded after the last response, so that a client that is still sending can read the response."""

    @property
    def least_bytes(self) -> float:
        """The least number of bytes in one window."""
        return self.least_bytes_per_second * self.window_seconds
