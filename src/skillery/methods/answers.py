"""The memory budget of answers. The bytes of a result count until the socket has taken them. For a large result, they
count from before the result is made.
"""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType

from skillery.context.tallies import Tally
from skillery.errors import AnswerTooLarge
from skillery.methods.budgets import SMALL, Budget

REMEDIES = {
    "describe_skill": "Ask with detail 'summary', and download SKILL.md: GET /skills/{name}/{version}/SKILL.md.",
    "read_skill_file": "Download it: GET /skills/{name}/{version}/{path} answers a file of any size.",
    "read_blob": "Ask for fewer bytes with max_bytes. GET /blobs/{blob_id} answers a blob of any size.",
    "resources/read": "Download it: GET /skills/{name}/{version}/{path} answers a file of any size.",
}
"""Hints for results that are too large for one answer. The keys are names of methods."""
ASK_FOR_LESS = "Ask for less: a smaller limit, or a narrower filter."


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
