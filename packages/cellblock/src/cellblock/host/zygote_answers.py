"""Requests to a zygote and its workshop, and their answers."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import time
from typing import Any

from cellblock.host.cells import heard, one_line
from cellblock.host.channel import encode_json
from cellblock.host.packets import Packets, Received
from cellblock.inside.link import CROWDED, NUMBER, STATUS

START_SECONDS = 20.0
ANSWER_SECONDS = 2.0
SEND_SECONDS = 20.0
CLOSE_SECONDS = 0.5
NO_REQUEST = 0.0, None
PIECE_BYTES = 32 * 1024
NUMBERS = range(1 << 40)
"""The valid numbers of requests. If a process sends another number, its message is the text of a failure."""


class ZygoteLost(Exception):
    """Raised if the zygote has died or does not answer. No code has run, so another zygote can serve the run."""


class Crowded(ZygoteLost):
    """Raised if an untrusted zygote runs, but may not create a process for another run."""


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
        self._answers: dict[int, tuple[float, asyncio.Future[Received]]] = {}
        """The answers of requests, and the times from which an answer is expected."""
        self._ended: asyncio.Future[None] | None = None
        """Done when the other process has closed its end. None until the process was ready."""
        self.lost = False
        self._last_words = ""
        """The reason that the process has sent for its end, or ""."""
        self._answered_at = 0.0
        self._looking: asyncio.TimerHandle | None = None

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
                one_line(str(first.content.get("message", "")))
                if first
                else "the sandbox ended while it was being set up"
            )
        self._ended = asyncio.get_running_loop().create_future()
        self.link.deliver_to(self._hear)
        return first.pid

    def _hear(self, received: Received | None) -> None:
        """Give an answer to the request with its number; end the zygote at its end of stream or at an answer to no
        request.
        """
        if received is None:
            self._end()
            return
        self._answered_at = time.monotonic()
        number = NUMBER.unpack_from(received.raw)[0] if len(received.raw) >= NUMBER.size else -1
        _, answer = self._answers.pop(number, NO_REQUEST)
        if answer is None and not self._wary and number not in NUMBERS:
            self._last_words = received.content.get("message") or heard(received.raw).message
        if answer is None or answer.done():
            received.close()
        else:
            answer.set_result(received)
        if answer is None and self._wary:
            self._end()

    def _end(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
        self.lose()

    def lose(self) -> None:
        self.lost = True
        if self._wary:
            self.link.hang_up()  # then its keeper ends it
        for _, answer in self._answers.values():
            if not answer.done():
                answer.set_exception(ZygoteLost(self._last_words))
        self._answers.clear()

    async def ask(self, messages: list[bytes], descriptors: tuple[int, ...] = (), *, number_at: int = 0) -> Received:
        """Send a request and return its answer, which begins with a NUMBER. Each message has it at `number_at`.

        Raise ZygoteLost if there is no answer, and OSError if descriptors of the answer were lost.
        A request may have several messages. The last one carries the descriptors.
        """
        if self.lost:
            raise ZygoteLost(self._last_words)
        number = next(self._numbers)
        answer: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self._answers[number] = time.monotonic() + SEND_SECONDS, answer
        whole = False
        try:
            packed = NUMBER.pack(number)
            numbered = [message[:number_at] + packed + message[number_at:] for message in messages]
            await self._send(numbered, descriptors)
            whole = True
            if number in self._answers:
                self._answers[number] = time.monotonic(), answer
            self._look_later(ANSWER_SECONDS)
            received = await answer
        except (TimeoutError, OSError):
            self._answers.pop(number, None)
            close_answer(answer)
            self.lose()
            raise ZygoteLost from None
        except asyncio.CancelledError:
            close_answer(answer)
            if not whole:
                self.lose()  # the rest of a request must not be read as the next one
            raise
        if received.cut:
            received.close()
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return received

    async def _send(self, messages: list[bytes], descriptors: tuple[int, ...]) -> None:
        if len(messages) == 1 and self.link.send_now(messages[0], descriptors):
            return
        async with asyncio.timeout(SEND_SECONDS):
            await self.link.send_whole(messages, descriptors)

    def _look_later(self, seconds: float) -> None:
        """Check after `seconds` whether the process still answers, unless such a check is due already."""
        if self._looking is None and not self.lost:
            self._looking = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        """Lose a process that had a request for ANSWER_SECONDS, and answered none in this time.

        The process handles one request after another, so an answer to any request shows that the process works.
        """
        self._looking = None
        if not self._answers:
            return
        oldest = min(since for since, _ in self._answers.values())
        silent = time.monotonic() - max(self._answered_at, oldest)
        if silent >= ANSWER_SECONDS:
            self.lose()
        else:
            self._look_later(ANSWER_SECONDS - silent)

    async def close(self) -> None:
        """Close the socket, and give the other process a short time to end."""
        if self._ended is not None:
            self.link.say_no_more()
            await asyncio.wait({self._ended}, timeout=CLOSE_SECONDS)
        if self._looking is not None:
            self._looking.cancel()
        self.link.close()
        self._end()


def close_answer(answer: asyncio.Future[Received]) -> None:
    """Close an answer that arrived when its caller was cancelled."""
    if answer.done() and not answer.cancelled() and answer.exception() is None:
        answer.result().close()


# -- messages ----------------------------------------------------------------------------------------------------------


def is_crowded(answer: Received) -> bool:
    """Return whether the zygote answered a request for a run with CROWDED."""
    return answer.raw[NUMBER.size :] == STATUS.pack(CROWDED)


def check_mounts(answer: Received) -> None:
    """Raise CannotMount if the workshop has answered that a mount failed."""
    if failed := answer.raw[NUMBER.size :].decode():
        raise CannotMount(failed)


def mount_order(uid: int, entries: list[bytes]) -> bytes:
    """Return the message that asks the workshop to mount entries. Each entry is the JSON text of one mount."""
    return b'{"uid": %d, "entries": [%b]}' % (uid, b",".join(entries))


def in_pieces(entries: list[dict[str, Any]]) -> list[list[bytes]]:
    """Return the entries in order as JSON, in groups of about PIECE_BYTES.

    An entry is always much smaller than a group.
    """
    pieces: list[list[bytes]] = []
    size = PIECE_BYTES
    for entry in entries:
        encoded = encode_json(entry)
        if size + len(encoded) > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(encoded)
        size += len(encoded) + 1
    return pieces
