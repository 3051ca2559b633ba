"""A ranker for tests, also as a plugin: texts are near if they have triples of letters in common."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skillery import hookimpl
from skillery.backends import Offer
from skillery.errors import Unavailable

BITS = 1024


def vector_of(text: str) -> bytes:
    """Return a bit for each triple of letters."""
    letters = f"  {' '.join(text.lower().split())}  "
    bits = 0
    for start in range(len(letters) - 2):
        bits |= 1 << int.from_bytes(letters[start : start + 3].encode(), "big") % (BITS - 1)
    return bits.to_bytes(BITS // 8, "big")


class LetterTriples:
    """The state can be set from outside: in a server, with the file `triples` in its home."""

    def __init__(self, home: Path | None = None, revision: str = "triples-1") -> None:
        self.revision = revision
        self.state = ""
        """`fails`, `hangs`, `errs`, which returns malformed rows, or `forgot`, which fails once; else the ranker works.
        """
        self.asked: list[int] = []
        """The numbers of skills that `nearest` was asked for."""
        self.read: list[str] = []
        """The texts that were read."""
        self.held: dict[int, int] = {}
        self._home = home

    async def vectors(self, texts: Sequence[str]) -> list[bytes]:
        self.read += texts
        return [vector_of(text) for text in texts]

    async def hold(self, changed: Sequence[tuple[int, bytes | None]]) -> None:
        if self.state == "forgot":
            self.state, self.held = "", {}
            raise Unavailable("the ranker has lost its vectors")
        for skill_id, vector in changed:
            self.held.pop(skill_id, None)
            if vector is not None:
                self.held[skill_id] = int.from_bytes(vector, "big")

    async def nearest(self, query: str, most: int) -> list[tuple[int, float]]:
        self.asked.append(most)
        state = (self._home / "triples").read_text() if self._home is not None else self.state
        if state == "fails":
            raise Unavailable("the ranker is unavailable")
        if state == "hangs":
            await asyncio.Event().wait()
        if state == "errs":
            malformed: Any = [(1,), ("2", 0.5), (1 << 64, 0.5)][len(self.asked) % 3]
            return [malformed]
        asked = int.from_bytes(vector_of(query), "big")
        rows = [(skill_id, _similarity(asked, held)) for skill_id, held in self.held.items()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))[:most]


def _similarity(left: int, right: int) -> float:
    """Return the cosine of two sets of bits."""
    product: float = (left.bit_count() * right.bit_count()) ** 0.5
    return (left & right).bit_count() / product if product else 0.0


@hookimpl
def skillery_ranker() -> Offer:
    return Offer("triples", lambda settings, place: LetterTriples(place.home))
