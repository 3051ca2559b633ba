"""Rankers: the skills whose texts mean what a query means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from skillery.backends.values import Kind, WithDefaults, default


@runtime_checkable
class Ranker(Protocol, metaclass=WithDefaults):
    """Finds skills by the meaning of their texts. The server stores the vectors of all skills, and combines the results
    with those by words. It decides which skills a caller sees.

    The methods run in the event loop of the server, so they must not block. Each worker process of a server has its own
    ranker.
    """

    revision: str
    """Names the model and the form of its vectors, with at most 255 characters. With another revision, the server
    computes all vectors again.
    """

    async def vectors(self, texts: Sequence[str]) -> list[bytes]:
        """Return the vector of each text, in the same order. The form of a vector is up to the ranker."""
        ...

    async def hold(self, changed: Sequence[tuple[int, bytes | None]]) -> None:
        """Keep the vectors of these skills in memory, instead of their earlier vectors. None: forget the skill.

        The server calls this method at its start with all skills, in several parts, and then every 2 seconds with those
        that have changed, which may be none. If the method raises an error, the server begins with all skills again: a
        ranker that has lost its vectors raises Unavailable.
        """
        ...

    async def nearest(self, query: str, most: int) -> list[tuple[int, float]]:
        """Return the nearest skills that it holds, at most `most`, nearest first, with their similarity.

        Raise Unavailable if it cannot answer. A call that takes more than 150 ms is cancelled.
        """
        ...

    @default("start", "close")
    async def start(self) -> None:
        """See `UsesService`."""
        return

    @default("start", "close")
    async def close(self) -> None:
        return


KIND = Kind("ranker", Ranker, setting="ranker", absent="", reads=("nearest",), read_seconds=0.15)
