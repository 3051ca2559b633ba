"""Memory budgets: one limits the bytes of all request bodies together, one the bytes of all answers together."""

from __future__ import annotations

from threading import Lock
from types import TracebackType

from skillery.context.tallies import OwnTally, Tally
from skillery.errors import Busy

RETRY_MS = 1000
SMALL = 16 * 1024
"""Largest size in bytes of a body or an answer that always fits, so that large requests do not block small ones."""


class Budget:
    """A limit of bytes for all requests together. `setting` is the name of the setting with the limit, for error
    messages. `held` counts the bytes; worker processes of one server share it.
    """

    def __init__(self, most_bytes: int, setting: str, held: Tally | None = None) -> None:
        self._most = most_bytes
        self._setting = setting
        self._held = held or OwnTally()
        # Needed because worker threads change the budget of answers.
        self.lock = Lock()

    @property
    def held(self) -> int:
        """The counted bytes of all requests of the server."""
        return self._held.total

    def check(self, size: int, others: int, *, is_small: bool) -> None:
        """Raise Busy if the budget has no room for `size` more bytes.

        `others` is the number of counted bytes of other bodies or results. If `others` is 0, or if `is_small`, any size
        fits.
        """
        if others and not is_small and self._held.total + size > self._most:
            raise Busy(
                f"other requests use {others} of {self._most} bytes (the setting {self._setting})",
                hint="Nothing was run. Try again after retry_after_ms.",
                retry_after_ms=RETRY_MS,
            )

    def change(self, size: int) -> None:
        self._held.add(size)


class Bodies(Budget):
    """The memory budget of request bodies. A body counts while it is read, and while its calls are queued or
    executed.
    """

    def __init__(self, most_bytes: int, held: Tally | None = None) -> None:
        super().__init__(most_bytes, "bodies_mb", held)

    def hold(self) -> HeldBody:
        return HeldBody(self)


class HeldBody:
    """Context manager that counts the body of one request in the budget, until the end of the `with` block or
    `give_back`.
    """

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._size = 0

    def expect(self, size: int) -> None:
        """Raise Busy if `size` more bytes of the body do not fit. Nothing is counted: `grow` counts the bytes when
        they arrive.
        """
        others = self._bodies.held - self._size
        self._bodies.check(size, others, is_small=self._size + size <= SMALL)

    def grow(self, size: int) -> None:
        """Count `size` more bytes of the body. Raise Busy if the budget has no room."""
        with self._bodies.lock:
            self.expect(size)
            self._bodies.change(size)
            self._size += size

    def __enter__(self) -> HeldBody:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.give_back()

    def give_back(self) -> None:
        with self._bodies.lock:
            self._bodies.change(-self._size)
            self._size = 0
