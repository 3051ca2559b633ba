"""The description of an exception. The exception is untrusted: its methods may raise, or report another class."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing `typing` for this costs every run milliseconds
if TYPE_CHECKING:
    from types import FrameType, TracebackType
    from typing import Any

# The runner, the standard library, modules frozen into the interpreter, and the guest, if there is one.
NOT_THEIRS: tuple[str, ...] = (__file__.rpartition("/")[0] + "/", os.__file__.rpartition("/")[0] + "/", "<frozen ")
MESSAGE, TRACEBACK, TYPE = 1000, 4000, 200
STACK = "the time is almost over; the code is here (most recent call last):"


class Told(Exception):
    """Raised for a failure that another program described."""

    def __init__(self, record: dict[str, str]) -> None:
        super().__init__(record["message"])
        self.record = record


def failed(type_: str, message: str, traceback: str = "") -> Told:
    """Return an exception with this failure. Its texts are cut to the allowed lengths."""
    return Told({"type": type_, "message": clip(message, MESSAGE), "traceback": clip(traceback, TRACEBACK)})


def clip(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = (limit - 5) // 2
    return f"{text[:half]}\n...\n{text[-half:]}" if "\n" in text else text[: limit - 1] + "…"


def type_name(error: object) -> str:
    # Not error.__class__ and not .__name__: the code can make both lie or raise.
    name = type.__dict__["__name__"].__get__(type(error))
    return clip(str(name), TYPE)


def message(error: BaseException) -> str:
    try:
        if type(error) is SystemExit:
            return clip(f"the code called sys.exit({error.code!r})", MESSAGE)
        return clip(str.__str__(str(error)), MESSAGE)
    except BaseException:  # noqa: BLE001 - a foreign __str__ may raise anything
        return "(its message could not be read)"


def user_frames(traceback: TracebackType | None) -> str:
    """Return the traceback as text, without the frames of the runner and of the standard library."""
    # Imported late: the import costs milliseconds, and most runs do not fail.
    from traceback import extract_tb, format_list

    frames = [f for f in extract_tb(traceback) if not f.filename.startswith(NOT_THEIRS)]
    return "".join(format_list(frames))


def stack(frame: FrameType | None) -> str:
    """Return the stack of user code as text, or "" if no user code runs. The host finds it in the log by STACK."""
    from traceback import extract_stack, format_list

    try:
        whole = extract_stack(frame)
        # The first frame of the runner has called the code; the frames before it belong to the sandbox.
        first = next(number for number, entry in enumerate(whole) if entry.filename.startswith(NOT_THEIRS[0]))
        frames = [entry for entry in whole[first:] if not entry.filename.startswith(NOT_THEIRS)]
        return clip(f"{STACK}\n{''.join(format_list(frames))}", TRACEBACK) if frames else ""
    except BaseException:  # noqa: BLE001 - the code may have broken builtins
        return ""


def shown(error: BaseException) -> str:
    try:
        frames = user_frames(error.__traceback__)
        if isinstance(error, SyntaxError):
            frames += f'  File "{error.filename}", line {error.lineno}\n    {(error.text or "").strip()}\n'
        last = f"{type_name(error)}: {message(error)}"
        return clip(f"Traceback (most recent call last):\n{frames}{last}", TRACEBACK) if frames else ""
    except BaseException:  # noqa: BLE001 - the code may have broken builtins
        return ""


def describe(error: BaseException) -> dict[str, Any]:
    record = {"type": type_name(error), "message": message(error), "traceback": shown(error)}
    if type(error) is Told:
        record = {"traceback": "", **error.record}
    return {name: text.encode("utf-8", "backslashreplace").decode() for name, text in record.items()}


def breathe() -> None:
    """Raise the recursion limit: after a RecursionError or MemoryError, too little may be left to report the error."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 5000))
