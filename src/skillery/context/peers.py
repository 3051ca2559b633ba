"""The other worker processes of a server, for answers about the whole server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol


class Peers(Protocol):
    """All worker processes of a server, this one included."""

    def offer(self, question: str, answer: Callable[[], Awaitable[Any]]) -> None:
        """Answer `question` of any worker with the result of `answer`, a value that JSON can contain."""
        ...

    async def ask(self, question: str) -> Sequence[Any]:
        """Return one answer for each worker. The answer of a worker that does not answer in time is None."""
        ...
