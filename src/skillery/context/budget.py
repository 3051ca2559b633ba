"""Memory budgets: one limits the bytes of all request bodies together, one the bytes of all answers together.

The bytes of a result count until the socket has taken them. For a large result, they count from before the result is
made.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

from skillery.context.tallies import OwnTally, Tally
from skillery.errors import AnswerTooLarge, Busy

RETRY_MS = 1000
SMALL = 16 * 1024
"""Largest size in bytes of a body or an answer that always fits, so that large requests do not block small ones."""

REMEDIES = {
    "describe_skill": "Ask with detail 'summary', and download SKILL.md: GET /skills/{name}/{version}/SKILL.md.",
    "read_skill_file": "Download it: GET /skills/{name}/{version}/{path} answers a file of any size.",
    "read_blob": "Ask for fewer bytes with max_bytes. GET /blobs/{blob_id} answers a blob of any size.",
    "resources/read": "Download it: GET /skills/{name}/{version}/{path} answers a file of any size.",
}
"""Hints for results that are too large for one answer. The keys are names of methods."""
ASK_FOR_LESS = "Ask for less: a smaller limit, or a narrower filter."


class Budget:
    """A limit of bytes for all requests together. `setting` is the name of the setting with the limit, for error
    messages. `tally` counts the bytes; worker processes of one server share it. `most_each` limits a single result.
    """

    def __init__(self, most_bytes: int, setting: str, tally: Tally | None = None, most_each: int = 0) -> None:
        self.most_bytes = most_bytes
        self.setting = setting
        self.tally = tally or OwnTally()
        self.most_each = most_each
        # Needed because worker threads change the budget of answers.
        self.lock = Lock()


class Room:
    """The bytes of one request in a budget: of its body, or of its answer.

    `open_rooms` opens the two rooms of a request, and closes them when it ends. The engine makes one result at a time:
    it calls `begin`, then `expect` any number of times, then `keep`, or `drop` if the call fails.
    """

    __slots__ = ("_budget", "_is_closed", "_is_refusable", "_kept", "_kept_small", "_method", "_taken")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0
        self._kept = 0
        """The part of the taken bytes that belongs to finished results. The rest is of the result in the making."""
        self._kept_small = 0
        """The part of the kept bytes that belongs to small results. Large results must not block small ones."""
        self._method = ""
        self._is_refusable = True
        self._is_closed = False

    def check(self, size: int) -> None:
        """Raise Busy if the budget has no room for `size` more bytes.

        If nothing else uses the budget, any size fits.
        """
        if self._taken - self._kept + self._kept_small + size <= SMALL:
            return
        budget = self._budget
        others = budget.tally.total - self._taken + self._kept
        if others and budget.tally.total + size > budget.most_bytes:
            raise Busy(
                f"other requests use {others} of {budget.most_bytes} bytes (the setting {budget.setting})",
                hint="Nothing was run. Try again after retry_after_ms.",
                retry_after_ms=RETRY_MS,
            )

    def take(self, size: int) -> None:
        """Count `size` more bytes: a piece of the body, or the memory of a stream. Raise Busy if there is no room."""
        with self._budget.lock:
            if not self._is_closed:
                self.check(size)
                self._add(size)

    def release(self, size: int | None = None) -> None:
        """Release `size` bytes, because the socket has taken them, or all bytes."""
        with self._budget.lock:
            size = self._taken if size is None else min(size, self._kept)
            self._kept = max(0, self._kept - size)
            self._add(-size)

    def close(self) -> None:
        """Release all bytes. From now on, nothing is counted: a worker thread may still make a result."""
        with self._budget.lock:
            self._is_closed = True
            self._kept = 0
            if self._taken:
                self._add(-self._taken)

    def begin(self, method: str, *, is_refusable: bool) -> None:
        """Start the result of a call of `method`.

        If not `is_refusable`, take room for a small result before the call, because the result of a call that has
        changed something must not be refused. Raise Busy if there is no room for a small result.
        """
        self._method, self._is_refusable = method, True
        if not is_refusable:
            self.expect(SMALL)
        self._is_refusable = is_refusable

    def expect(self, size: int) -> None:
        """Take at least `size` bytes for the result that is being made.

        If the result is refusable (see `begin`), raise AnswerTooLarge if it is larger than one answer may be, and Busy
        if the budget has no room.
        """
        with self._budget.lock:
            self._expect(size)

    def keep(self, size: int) -> None:
        """Count the finished result with its real size. Raise the errors of `expect`."""
        with self._budget.lock:
            self._expect(size)
            self._add(0 if self._is_closed else self._kept + size - self._taken)
            self._kept = self._taken
            self._kept_small += size if size <= SMALL else 0

    def drop(self) -> None:
        """Release the bytes of the result that is being made: the call has failed, or nothing else needs its result."""
        with self._budget.lock:
            self._add(self._kept - self._taken)

    def _expect(self, size: int) -> None:
        more = self._kept + size - self._taken
        if more <= 0 or self._is_closed:
            return
        if self._is_refusable:
            if size > self._budget.most_each:
                raise AnswerTooLarge(
                    f"the result has {size} bytes or more; an answer may have at most {self._budget.most_each} "
                    "(the setting answer_max_mb)",
                    hint=REMEDIES.get(self._method, ASK_FOR_LESS),
                    limit=self._budget.most_each,
                )
            self.check(more)
        self._add(more)

    def _add(self, size: int) -> None:
        self._taken += size
        self._budget.tally.add(size)


_OUTSIDE = Room(Budget(0, ""))
_OUTSIDE.close()
body_room: ContextVar[Room] = ContextVar("body_room", default=_OUTSIDE)
"""The bytes of the current request's body. Outside of requests, nothing is counted."""
answer_room: ContextVar[Room] = ContextVar("answer_room", default=_OUTSIDE)
"""The bytes of the current request's answer."""


@contextmanager
def open_rooms(bodies: Budget, answers: Budget) -> Iterator[None]:
    """Context manager that counts the body and the answer of one request in the budgets."""
    body, answer = Room(bodies), Room(answers)
    body_room.set(body)
    answer_room.set(answer)
    try:
        yield
    finally:
        body.close()
        answer.close()


def expect_result(size: int) -> None:
    """Take `size` bytes for the result of the current request, before the result is made. Raise the errors of
    `Room.expect`.
    """
    answer_room.get().expect(size)
