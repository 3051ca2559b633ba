"""The limits of one connection."""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one connection. Sizes are in bytes, times in seconds."""

    head_bytes: int = 64 * KIB
    head_seconds: float = 30
    """Time for the head of a request (request line and headers). The time starts when the client connects, or with
    the first byte of a later head.
    """
    headers: int = 256
    """Limit of the headers of one request. Even a short header takes about a hundred bytes of memory."""
    framing_bytes: int = 16 * KIB
    framing_seconds: float = 10
    """`framing_bytes` and `framing_seconds` limit the chunk sizes, chunk extensions and trailers between two bytes of
    the body, or after the last one.
    """
    pipelined: int = 16
    """Limit of the requests of one connection that wait for the response to an earlier request."""
    window_seconds: float = 90
    least_bytes_per_second: int = KIB
    """Minimum rate over each `window_seconds`, for a body that the server reads and for a response that the client
    reads.
    """
    linger_bytes: int = 16 * MIB
    linger_seconds: float = 10
    """Limits of the input that is discarded after the last response. A client that is still sending can then read
    the response.
    """

    @property
    def least_bytes(self) -> float:
        """The minimum number of bytes in one window of `window_seconds`."""
        return self.least_bytes_per_second * self.window_seconds
