"""The slots of a queue: how many requests may run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Slots(Protocol):
    """A limited number of slots."""

    @property
    def most(self) -> int:
        """The number of all slots."""
        ...

    def take(self) -> bool:
        """Take a free slot and return True, or return False if no slot is free."""
        ...

    def give_back(self) -> None: ...

    def is_wanted_elsewhere(self) -> bool:
        """Return whether requests wait for a slot in other processes."""
        ...

    def watch(self, offer: Callable[[], None]) -> None:
        """Call `offer` on the event loop when another process gives a slot back while requests wait here."""
        ...


class OwnSlots:
    """The slots of one process."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = most

    def take(self) -> bool:
        if not self._free:
            return False
        self._free -= 1
        return True

    def give_back(self) -> None:
        self._free += 1

    def is_wanted_elsewhere(self) -> bool:
        return False

    def watch(self, offer: Callable[[], None]) -> None:
        """Do nothing: no other process gives slots back."""
