"""Messages and counts that the supervisor and its workers share."""

from __future__ import annotations

import asyncio
import itertools
import logging
import mmap
import os
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skillery.app.builders import Counts
from skillery.context.tallies import Peers, SharedNumbers, SharedSlots, SharedTally, Tally
from skillery.errors import DatabaseUnreachable, StartupError

# -- Messages: JSON objects, each with its length in front -------------------------------------------------------------


log = logging.getLogger(__name__)
_HEAD = struct.Struct("!I")
SEND_SECONDS = 2.0
"""Time for sending one message. A process that reads nothing for this time gets no further message."""
ANSWER_SECONDS = 5.0
"""Time in which each worker answers a question of another one."""


class Message(msgspec.Struct, omit_defaults=True):
    """kind:

    - `ready`: the worker answers requests; `value` is the token of the first admin, or null.
    - `failed`: the worker cannot start; `value` is the reason, and whether the database cannot be reached.
    - `ask`: the worker has a question for all workers.
    - `question`: the supervisor passes on a question.
    - `answer`: the worker answers a question with `value`.
    - `answers`: the supervisor sends the answers of all workers (`value`, a list) to the worker that asked.
    """

    kind: str
    number: int = 0
    """Number of a question: of the worker in `ask` and `answers`, of the supervisor in `question` and `answer`."""
    question: str = ""
    value: Any = None


class SupervisorLink:
    """The supervisor's end of the link. Its reads do not block."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._received = bytearray()
        end.settimeout(SEND_SECONDS)

    def send(self, message: Message) -> None:
        """Send the message. Drop it if the worker has ended or reads nothing."""
        try:
            self.end.sendall(_encode(message))
        except OSError as error:
            log.debug("a worker does not read the messages of the supervisor: %s", error)

    def receive(self) -> list[Message] | None:
        """Return the complete messages that have arrived, or None if the worker has closed its end."""
        try:
            piece = self.end.recv(256 * 1024, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not piece:
            return None
        self._received += piece
        return list(iter(self._next, None))

    def close(self) -> None:
        self.end.close()

    def _next(self) -> Message | None:
        if len(self._received) < _HEAD.size:
            return None
        (size,) = _HEAD.unpack_from(self._received)
        if len(self._received) < _HEAD.size + size:
            return None
        body = bytes(self._received[_HEAD.size : _HEAD.size + size])
        del self._received[: _HEAD.size + size]
        return msgspec.json.decode(body, type=Message)


class WorkerLink:
    """The worker's end of the link. It implements `Peers`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._answers: dict[str, Callable[[], Awaitable[Any]]] = {}
        self._asked: dict[int, asyncio.Future[Sequence[Any]]] = {}
        self._numbers = itertools.count(1)
        self._answering: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(cls, end: socket.socket) -> WorkerLink:
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end))

    def ready(self, token: str | None) -> None:
        self._send(Message("ready", value=token))

    async def failed(self, error: StartupError) -> None:
        self._send(Message("failed", value=(str(error), isinstance(error, DatabaseUnreachable))))
        await self._writer.drain()

    def offer(self, question: str, answer: Callable[[], Awaitable[Any]]) -> None:
        self._answers[question] = answer

    async def ask(self, question: str) -> Sequence[Any]:
        number = next(self._numbers)
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(Message("ask", number, question))
            # The supervisor gives up before that.
            return await asyncio.wait_for(self._asked[number], 2 * ANSWER_SECONDS)
        finally:
            del self._asked[number]

    async def follow(self) -> None:
        """Answer questions until the supervisor ends."""
        try:
            while True:
                (size,) = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                self._handle(msgspec.json.decode(await self._reader.readexactly(size), type=Message))
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    def close(self) -> None:
        self._writer.close()

    def _handle(self, message: Message) -> None:
        if message.kind == "question":
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif message.kind == "answers" and message.number in self._asked:
            answer = self._asked[message.number]
            if not answer.done():
                answer.set_result(message.value)

    async def _answer(self, message: Message) -> None:
        try:
            value = await self._answers[message.question]()
        except Exception:
            log.exception("the worker cannot answer the question %s of another worker", message.question)
            value = None
        self._send(Message("answer", message.number, value=value))

    def _send(self, message: Message) -> None:
        self._writer.write(_encode(message))


def _encode(message: Message) -> bytes:
    body = msgspec.json.encode(message)
    return _HEAD.pack(len(body)) + body


# -- Questions of a worker to all workers, and their answers, as the supervisor keeps them -----------------------------


Delivery = tuple[int, Message]
"""The pid of a worker, and a message for it."""


class _Gathering:
    """A question of the worker `asker`, and the answers that have arrived."""

    def __init__(self, asker: int, number: int, pids: Sequence[int]) -> None:
        self.asker = asker
        self.number = number
        self.open = set(pids)
        """The workers that have not answered."""
        self.answers: list[Any] = []
        self.deadline = time.monotonic() + ANSWER_SECONDS

    def result(self) -> Delivery:
        """Return the answers for the worker that asked, with None for each worker without an answer."""
        values = [*self.answers, *[None] * len(self.open)]
        return self.asker, Message("answers", self.number, value=values)


class Gatherings:
    """The questions of workers that do not have all answers yet."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, _Gathering] = {}

    def begin(self, asker: int, message: Message, pids: Sequence[int]) -> Message:
        """Record the question of a worker. Return the message for the workers `pids`, whose answers it needs."""
        number = next(self._numbers)
        self._open[number] = _Gathering(asker, message.number, pids)
        return Message("question", number, message.question)

    def add(self, pid: int, message: Message) -> Iterator[Delivery]:
        """Record the answer of a worker. If it is the last one, yield the message with all answers."""
        gathering = self._open.get(message.number)
        if gathering is None or pid not in gathering.open:
            return
        gathering.open.discard(pid)
        gathering.answers.append(message.value)
        if not gathering.open:
            yield self._open.pop(message.number).result()

    def forget(self, pid: int) -> Iterator[Delivery]:
        """Wait no longer for a worker that has ended. Yield the messages of the questions that are
        complete without it.
        """
        for number, gathering in list(self._open.items()):
            gathering.open.discard(pid)
            if not gathering.open:
                yield self._open.pop(number).result()

    def deadlines(self) -> Iterator[float]:
        return (gathering.deadline for gathering in self._open.values())

    def expired(self) -> Iterator[Delivery]:
        """Yield the messages of the questions whose deadline has passed, with None for each missing answer."""
        now = time.monotonic()
        for number, gathering in list(self._open.items()):
            if gathering.deadline <= now:
                yield self._open.pop(number).result()


# -- Counts in memory and in a file that the workers share -------------------------------------------------------------


COLUMNS = ("bodies", "answers", "waiting", "waiting_bytes", "connections")
BUCKETS = 65_536
"""Two addresses that share a bucket are counted together. With a thousand addresses, one of 65 is in such a pair."""
INT = 4


class SharedCounts:
    """The counts of all workers. Created before the workers are forked; each worker gets its view with `of`."""

    def __init__(self, workers: int, slots_path: Path) -> None:
        """There may be twice as many workers for a time, while new ones replace them."""
        self.workers = workers
        parts = 2 * workers
        self._numbers = SharedNumbers(len(COLUMNS), parts)
        self._addresses = memoryview(mmap.mmap(-1, parts * BUCKETS * INT)).cast("i")
        self._slots_path = slots_path
        self._bells = [os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(parts)]

    def of(self, part: int, runs_at_once: int, peers: Peers) -> Counts:
        """Return the counts as the worker with the number `part` sees them. Call this in the worker."""
        tallies = {name: SharedTally(self._numbers, column, part) for column, name in enumerate(COLUMNS)}
        slots = SharedSlots(
            self._slots_path,
            most=runs_at_once,
            part=part,
            waiting=self._numbers.column(COLUMNS.index("waiting")),
            bells=self._bells,
        )
        return Counts(
            tallies["bodies"],
            tallies["answers"],
            tallies["waiting"],
            tallies["waiting_bytes"],
            slots,
            SharedConnections(tallies["connections"], self._addresses, part),
            peers,
        )

    def is_ahead(self, part: int) -> bool:
        """Return whether the worker has more than its share of the connections."""
        parts = self._numbers.column(COLUMNS.index("connections"))
        return parts[part] > sum(parts) / self.workers

    def clear(self, part: int) -> None:
        """Delete the counts of a dead worker, so that others can use its slots."""
        self._numbers.clear(part)
        start = part * BUCKETS
        self._addresses[start : start + BUCKETS] = memoryview(bytes(BUCKETS * INT)).cast("i")
        for bell in self._bells:
            os.eventfd_write(bell, 1)


class SharedConnections:
    """The open connections of all workers, in total and per address."""

    def __init__(self, total: Tally, addresses: memoryview, part: int) -> None:
        self._total = total
        self._addresses = addresses
        self._part = part * BUCKETS

    @property
    def total(self) -> int:
        return self._total.total

    def add(self, address: str) -> None:
        self._total.add(1)
        self._addresses[self._part + _bucket(address)] += 1

    def remove(self, address: str) -> None:
        self._total.add(-1)
        self._addresses[self._part + _bucket(address)] -= 1

    def of(self, address: str) -> int:
        return sum(self._addresses[_bucket(address) :: BUCKETS])


def _bucket(address: str) -> int:
    # Forked processes have the same random seed for hashes of texts, and clients cannot know it.
    return hash(address) % BUCKETS
