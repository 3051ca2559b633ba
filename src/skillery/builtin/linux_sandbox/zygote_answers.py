"""Requests to a zygote, and its answers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from typing import Any

from skillery.builtin.linux_sandbox.cells import said
from skillery.builtin.linux_sandbox.links import Packets, Received

START_SECONDS = 20.0
ANSWER_SECONDS = 2.0
SEND_SECONDS = 20.0
CLOSE_SECONDS = 0.5


class ZygoteLost(Exception):
    """Raised if the zygote has died or does not answer. No code has run, so another zygote can serve the run."""


class CannotStart(Exception):
    """Raised if no cell can be started. The message says what failed."""


class CannotMount(Exception):
    """Raised if the files of a run cannot be mounted. The message contains no path of the host."""


class ZygoteAnswers:
    """Requests over one socket. Each answer has the number of its request. A process without answers counts as dead."""

    def __init__(self, *, wary: bool = False) -> None:
        """With `wary`, the other process is untrusted: if it sends a message without a request, the socket is
        closed.
        """
        self._wary = wary
        self.link = Packets(wary=wary)
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Received]] = {}
        self._listening: asyncio.Task[None] | None = None
        self.lost = False
        self._answered = 0

    async def wait_ready(self, seconds: float = START_SECONDS) -> int:
        """Wait for the first message of the process. Return its pid, which is 0 unless `wary`. Raise CannotStart on
        failure.
        """
        try:
            async with asyncio.timeout(seconds):
                first = await self.link.receive()
        except TimeoutError:
            raise CannotStart(f"the sandbox was not ready after {seconds:.0f} seconds") from None
        if first is None or "ready" not in first.content:
            raise CannotStart(
                said(str(first.content.get("message", ""))) if first else "the sandbox ended while it was being set up"
            )
        self._listening = asyncio.ensure_future(self._listen())
        return first.pid

    async def _listen(self) -> None:
        while (received := await self.link.receive()) is not None:
            self._answered += 1
            number = received.content.get("number", -1)
            asked = self._asked.pop(number, None) if isinstance(number, int) else None
            if asked is None and self._wary:
                break
            if asked is None or asked.done():
                received.close()
            else:
                asked.set_result(received)
        self.lose()

    def lose(self) -> None:
        self.lost = True
        if self._wary:
            self.link.hang_up()  # then its keeper ends it
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(ZygoteLost())
        self._asked.clear()

    async def ask(self, messages: list[dict[str, Any]], descriptors: tuple[int, ...] = ()) -> Received:
        """Send a request and return its answer. Raise ZygoteLost if there is none, OSError if descriptors of it were
        lost.

        A request may have several messages. The last one carries the descriptors.
        """
        if self.lost:
            raise ZygoteLost
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        whole = False
        try:
            async with asyncio.timeout(SEND_SECONDS):
                await self.link.send_whole([{**message, "number": number} for message in messages], descriptors)
            whole = True
            received = await self._answer(asked)
        except (TimeoutError, OSError):
            self._asked.pop(number, None)
            close_answer(asked)
            self.lose()
            raise ZygoteLost from None
        except asyncio.CancelledError:
            close_answer(asked)
            if not whole:
                self.lose()  # the rest of a request must not be read as the next one
            raise
        if received.cut:
            received.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return received

    async def _answer(self, asked: asyncio.Future[Received]) -> Received:
        """Return the answer. Raise TimeoutError if the process answers no request for ANSWER_SECONDS.

        The process handles one request after another, so an answer to any request shows that the process works.
        """
        while True:
            before = self._answered
            await asyncio.wait({asked}, timeout=ANSWER_SECONDS)
            if asked.done():
                return asked.result()
            if self._answered == before:
                raise TimeoutError

    async def close(self) -> None:
        """Close the socket, and give the other process a short time to end."""
        if self._listening is not None:
            self.link.say_no_more()
            await asyncio.wait({self._listening}, timeout=CLOSE_SECONDS)
        self.link.close()
        if self._listening is not None:
            await self._listening


def close_answer(asked: asyncio.Future[Received]) -> None:
    """Close an answer that arrived when its caller was cancelled."""
    if asked.done() and not asked.cancelled() and asked.exception() is None:
        asked.result().close()
