"""Questions of a worker to all workers, and their answers, as the supervisor keeps them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any

from skillery.app.workers.links import ANSWER_SECONDS, Message

Delivery = tuple[int, Message]
"""The pid of a worker, and a message for it."""


class _Gathering:
    def __init__(self, asker: int, number: int, asked: Sequence[int]) -> None:
        self.asker = asker
        self.number = number
        self.open = set(asked)
        self.answers: list[Any] = []
        self.deadline = time.monotonic() + ANSWER_SECONDS

    def result(self) -> Delivery:
        """Return the answers for the worker that asked, with None for each worker without an answer."""
        values = [*self.answers, *[None] * len(self.open)]
        return self.asker, Message("answers", self.number, value=values)


class Gatherings:
    """The questions that are not answered yet."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, _Gathering] = {}

    def begin(self, asker: int, message: Message, asked: Sequence[int]) -> Message:
        """Keep the question of a worker for the workers `asked`, and return the message for each of them."""
        number = next(self._numbers)
        self._open[number] = _Gathering(asker, message.number, asked)
        return Message("question", number, message.question)

    def add(self, pid: int, message: Message) -> Iterator[Delivery]:
        """Keep the answer of a worker. Yield the answers of all, if this is the last one."""
        gathering = self._open.get(message.number)
        if gathering is None or pid not in gathering.open:
            return
        gathering.open.discard(pid)
        gathering.answers.append(message.value)
        if not gathering.open:
            yield self._open.pop(message.number).result()

    def forget(self, pid: int) -> Iterator[Delivery]:
        """Expect no answer of a worker that has ended. Yield the gatherings that are complete without it."""
        for number, gathering in list(self._open.items()):
            gathering.open.discard(pid)
            if not gathering.open:
                yield self._open.pop(number).result()

    def deadlines(self) -> Iterator[float]:
        return (gathering.deadline for gathering in self._open.values())

    def expired(self) -> Iterator[Delivery]:
        """Yield the gatherings that have waited long enough."""
        now = time.monotonic()
        for number, gathering in list(self._open.items()):
            if gathering.deadline <= now:
                yield self._open.pop(number).result()
