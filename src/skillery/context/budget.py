"""Memory budgets: one limits the bytes of all request bodies together, one the bytes of all answers together.

The bytes of a result count until the socket has taken them. For a large result, they count from before the result is
made.
"""

from __future__ import annotations

from contextvars import ContextVar
from threading import Lock
from types import TracebackType

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


class Answers(Budget):
    """The memory budget of all answers. `most_bytes` limits all answers together, `most_each` a single result."""

    def __init__(self, most_bytes: int, most_each: int, held: Tally | None = None) -> None:
        super().__init__(most_bytes, "answers_mb", held)
        self.most_each = most_each

    def hold(self) -> HeldAnswer:
        return HeldAnswer(self)


class HeldAnswer:
    """Context manager that counts the answer of one request in the budget, until the end of the `with` block.

    A request makes one result at a time: the request calls `begin`, then `expect` any number of times, then `keep`, or
    `drop` if the call fails.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._making = 0
        self._kept = 0
        self._kept_small = 0
        self._method = ""
        self._is_refusable = True
        self._is_closed = False

    def begin(self, method: str, *, is_refusable: bool) -> None:
        """Start the result of a call of `method`.

        If not `is_refusable`, reserve room for a small result before the call, because the result of a call that has
        changed something must not be refused. Raise Busy if there is no room for a small result.
        """
        with self._answers.lock:
            self._make(0)
            self._method, self._is_refusable = method, True
            if not is_refusable:
                self._expect(SMALL)
            self._is_refusable = is_refusable

    def expect(self, size: int) -> None:
        """Reserve at least `size` bytes for the result that is being made.

        If the result is refusable (see `begin`), raise AnswerTooLarge if it is larger than one answer may be, and Busy
        if the budget has no room.
        """
        with self._answers.lock:
            self._expect(size)

    def keep(self, size: int) -> None:
        """Count the finished result with its real size, in place of the reserved bytes.

        Raise the errors of `expect`.
        """
        with self._answers.lock:
            self._expect(size)
            self._make(0)
            self._keep(size)
            if self._kept_small + size <= SMALL:
                self._kept_small += size

    def drop(self) -> None:
        """Release the bytes that are reserved for a result, because the call has failed."""
        with self._answers.lock:
            if not self._is_closed:
                self._make(0)

    def take(self, size: int) -> None:
        """Count memory for an answer that is not the result of a call, such as a stream or an index. Raise Busy if
        the budget has no room.
        """
        with self._answers.lock:
            self._answers.check(size, self._answers.held, is_small=size <= SMALL)
            self._keep(size)

    def sent(self, size: int) -> None:
        """Release `size` bytes, because the socket has taken them."""
        with self._answers.lock:
            self._keep(-min(size, self._kept))

    def _expect(self, size: int) -> None:
        more = size - self._making
        if more <= 0 or self._is_closed:
            return
        if self._is_refusable:
            self._check(size, more)
        self._make(size)

    def _check(self, size: int, more: int) -> None:
        if size > self._answers.most_each:
            raise AnswerTooLarge(
                f"the result has {size} bytes or more; an answer may have at most {self._answers.most_each} "
                "(the setting answer_max_mb)",
                hint=REMEDIES.get(self._method, ASK_FOR_LESS),
                limit=self._answers.most_each,
            )
        others = self._answers.held - self._making
        self._answers.check(more, others, is_small=self._kept_small + size <= SMALL)

    def _make(self, size: int) -> None:
        self._answers.change(size - self._making)
        self._making = size

    def _keep(self, size: int) -> None:
        # A worker thread may still make a result after the request has ended.
        if not self._is_closed:
            self._answers.change(size)
            self._kept += size

    def __enter__(self) -> HeldAnswer:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with self._answers.lock:
            self._make(0)
            self._keep(-self._kept)
            self._is_closed = True


held_answer: ContextVar[HeldAnswer | None] = ContextVar("held_answer", default=None)
"""The counted answer of the current request. None outside of requests."""


def expect_result(size: int) -> None:
    """Reserve `size` bytes for the result of the current request, before the result is made. Do nothing outside of
    requests.

    Raise the errors of `HeldAnswer.expect`.
    """
    held = held_answer.get()
    if held is not None:
        held.expect(size)
