"""How much of request bodies the server holds in memory at one time."""

from __future__ import annotations

from types import TracebackType

from skillery.errors import Busy

RETRY_MS = 1000
SMALL = 16 * 1024
"""Bytes of a body that always fits: what reads and lists is not kept out by those who send much."""


class Bodies:
    """All bodies that are being read or worked on. A caller without a place in the queue costs memory too."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held = 0

    def hold(self) -> HeldBody:
        return HeldBody(self)

    def check(self, size: int, own: int) -> None:
        """Raises Busy where `size` more has no room beside the others. A body that is alone always fits, and a small
        one."""
        others = self._held - own
        if others and own + size > SMALL and self._held + size > self._most:
            raise Busy(
                f"{others} bytes of others are held already, of {self._most} (the setting bodies_mb)",
                hint="Nothing was run. Try again after retry_after_ms.",
                retry_after_ms=RETRY_MS,
            )

    def change(self, size: int) -> None:
        self._held += size


class HeldBody:
    """What one request holds, until the end of the `with`."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0

    def expect(self, size: int) -> None:
        """Before anything is read. It is counted as it comes: who only announces much takes no room from others.

        Raises Busy.
        """
        self._bodies.check(size, self._size)

    def grow(self, size: int) -> None:
        """Raises Busy."""
        self._bodies.check(size, self._size)
        self._bodies.change(size)
        self._size += size

    def __enter__(self) -> HeldBody:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._bodies.change(-self._size)
        self._size = 0
