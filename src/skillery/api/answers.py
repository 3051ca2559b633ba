"""The memory budget of answers. An answer counts from before it is built until the socket has accepted its bytes."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType

from skillery.api.budgets import SMALL, Budget
from skillery.errors import AnswerTooLarge

REMEDIES = {
    "describe_skill": "Ask with detail 'summary', and download SKILL.md: GET /skills/{name}/{version}/SKILL.md.",
    "read_skill_file": "Download it: GET /skills/{name}/{version}/{path} answers a file of any size.",
    "read_blob": "Ask for fewer bytes with max_bytes. GET /blobs/{blob_id} answers a blob of any size.",
    "resources/read": "Download it: GET /skills/{name}/{version}/{path} answers a file of any size.",
}
"""Hints for results that are too large for one answer. The keys are names of methods."""
ASK_FOR_LESS = "Ask for less: a smaller limit, or a narrower filter."


class Answers(Budget):
    """The budget of all answers together. `most_each` is the limit of a single result in bytes."""

    def __init__(self, most_bytes: int, most_each: int) -> None:
        super().__init__(most_bytes, "answers_mb")
        self.most_each = most_each

    def hold(self) -> HeldAnswer:
        return HeldAnswer(self)


class HeldAnswer:
    """Context manager that counts the bytes of one request in the budget.

    A request makes one result at a time: it calls `begin`, then `expect` at least once, then `keep`.
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
        """Begin the result of a method before the method is called.

        `is_refusable` is False for a method that changes something, because its result must not be refused after the
        change. So room for a small result is reserved before the change. Raise Busy if there is no room.
        """
        with self._answers.lock:
            self._make(0)
            self._method, self._is_refusable = method, True
            if not is_refusable:
                self._expect(SMALL)
            self._is_refusable = is_refusable

    def expect(self, size: int) -> None:
        """Reserve at least `size` bytes for the current result. Raise AnswerTooLarge or Busy if there is no room."""
        with self._answers.lock:
            self._expect(size)

    def keep(self, size: int) -> None:
        """Replace the reserved size of the current result by its real size. Raise AnswerTooLarge or Busy if there is
        no room.
        """
        with self._answers.lock:
            self._expect(size)
            self._make(0)
            self._keep(size)
            if self._kept_small + size <= SMALL:
                self._kept_small += size

    def drop(self) -> None:
        """Release the reserved bytes of a result whose method failed."""
        with self._answers.lock:
            if not self._is_closed:
                self._make(0)

    def take(self, size: int) -> None:
        """Count memory for an answer that no method returned, such as a stream or an index. Raise Busy if there is
        no room.
        """
        with self._answers.lock:
            self._answers.check(size, self._answers.held, is_small=size <= SMALL)
            self._keep(size)

    def sent(self, size: int) -> None:
        """Release bytes that the socket has accepted."""
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
                f"the result has {size} bytes or more, and an answer at most {self._answers.most_each} "
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
        # A thread may still make a result after its request has ended.
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
"""The budget entry of the current request. None outside of requests."""


def expect_result(size: int) -> None:
    """Reserve memory for a result as soon as its size is known. Raise AnswerTooLarge or Busy if there is no room."""
    held = held_answer.get()
    if held is not None:
        held.expect(size)
