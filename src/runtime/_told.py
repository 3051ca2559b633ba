"""What the code tells its host. Here the values are checked as in a run, and nothing is sent."""

from __future__ import annotations

LARGEST_PROGRESS = 1e300


class HostError(OSError):
    """Raised if the host refuses a request of the code."""


class SkillError(Exception):
    """Raised if a called skill has failed in its own sandbox.

    `type` is the class name of its exception, or the failure type (`MemoryLimitExceeded`, `SecretNotGranted` and so
    on).
    """

    def __init__(self, type: str, message: str) -> None:  # noqa: A002 - the name of the attribute
        super().__init__(type, message)
        self.type = type
        self.message = message

    def __str__(self) -> str:
        return self.message


def summary(text: str) -> None:
    """Set the run's `summary`, one sentence. The last call wins."""
    if not isinstance(text, str):
        raise TypeError(f"a summary is a str, not {type(text).__name__}")


def progress(done: float, total: float | None = None, text: str = "") -> None:
    """Tell callers that follow the run how far it has come, for example `progress(3, 10, "reading")`.

    The last call counts. `total` is None if it is not known.
    """
    for number in (done, 0 if total is None else total):
        if not (isinstance(number, int | float) and abs(number) < LARGEST_PROGRESS):
            raise TypeError(f"progress is counted in finite numbers, not in {number!r}")
    if not isinstance(text, str):
        raise TypeError(f"the text of a progress is a str, not {type(text).__name__}")
