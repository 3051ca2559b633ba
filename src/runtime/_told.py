"""What the code tells its host. Here the values are checked as in a run, and nothing is sent."""

from __future__ import annotations

LARGEST_PROGRESS = 1e300


class HostError(OSError):
    """Raised if the server refuses a request of the code."""


class SkillError(Exception):
    """Raised if a called skill has failed in its sandbox.

    `type` is the class name of its exception, or a failure type such as `MemoryLimitExceeded`.
    """

    def __init__(self, type: str, message: str) -> None:  # noqa: A002 - the name of the attribute
        super().__init__(type, message)
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return self.message


def summary(text: str) -> None:
    """Set the `summary` of the run, one sentence. If code calls this several times, the last call counts."""
    if not isinstance(text, str):
        raise TypeError(f"a summary is a str, not {type(text).__name__}")


def progress(done: float, total: float | None = None, text: str = "") -> None:
    """Report progress to callers that follow the run, for example `progress(3, 10, "reading")`.

    The last call counts. `total` is None if it is unknown.
    """
    for number in (done, 0 if total is None else total):
        if not (isinstance(number, int | float) and abs(number) < LARGEST_PROGRESS):
            raise TypeError(f"progress is counted in finite numbers, not in {number!r}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is a str, not {type(text).__name__}")
