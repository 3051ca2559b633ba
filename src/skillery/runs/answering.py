"""From what a sandbox says to what a caller is told. Everything a sandbox says is untrusted."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from skillery.backends import Failure, FailureType, Log, Outcome
from skillery.context.threads import BIG_TEXT, JSON
from skillery.runs.results import RunError

OUTPUT_BYTES = 4096
PREVIEW_BYTES = 512
LOGS_PREVIEW_BYTES = 2048
LONGEST_SHOWN = 4
"""Bytes that one byte becomes at most where it is shown: `\\x00`."""
SUMMARY_CHARACTERS = 500
MESSAGE_CHARACTERS = 1000
TRACEBACK_CHARACTERS = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


async def checked(outcome: Outcome) -> Outcome:
    """The outcome, failed where its result is no JSON."""
    if outcome.failure is not None:
        return outcome
    if len(outcome.result or b"") > BIG_TEXT:
        return await JSON.run(_checked, outcome)
    return _checked(outcome)


def _checked(outcome: Outcome) -> Outcome:
    try:
        # As text: msgspec skips over the bytes of a string without looking whether they are UTF-8.
        msgspec.json.decode((outcome.result or b"").decode(), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        failure = Failure(FailureType.INVALID_OUTPUT, "the returned value is not JSON")
        return msgspec.structs.replace(outcome, result=None, failure=failure)
    return outcome


def summary_of(outcome: Outcome) -> str:
    """What the code set, else `output["summary"]`, else a sentence; at most 500 characters. A result over 256 KiB is
    not looked into: nobody else is served meanwhile."""
    text = outcome.summary or _own_summary(outcome) or _generated(outcome)
    return shown(text[:SUMMARY_CHARACTERS])[:SUMMARY_CHARACTERS]


def _own_summary(outcome: Outcome) -> str | None:
    if not outcome.result or not outcome.result.startswith(b"{") or len(outcome.result) > BIG_TEXT:
        return None
    summary = msgspec.json.decode(outcome.result, type=dict[str, msgspec.Raw]).get("summary")
    if summary is None or not bytes(summary).startswith(b'"'):
        return None
    return msgspec.json.decode(summary, type=str)


def _generated(outcome: Outcome) -> str:
    if outcome.failure is not None:
        first = (outcome.failure.message[:MESSAGE_CHARACTERS].strip().splitlines() or [""])[0]
        return f"Failed with {outcome.failure.type}: {first}" if first else f"Failed with {outcome.failure.type}."
    return f"Completed in {outcome.duration_ms:.0f} ms and returned {_described(outcome.result or b'null')}."


def _described(result: bytes) -> str:
    match result[:1]:
        case b"{" | b"[" if len(result) > BIG_TEXT:
            return f"{'an object' if result.startswith(b'{') else 'a list'} of {len(result)} bytes"
        case b"{":
            count = len(msgspec.json.decode(result, type=dict[str, msgspec.Raw]))
            return f"an object with {count} key{'s' * (count != 1)}"
        case b"[":
            count = len(msgspec.json.decode(result, type=list[msgspec.Raw]))
            return f"a list of {count} item{'s' * (count != 1)}"
        case b'"':
            return "a text"
        case b"n":
            return "nothing"
        case _:
            return result[:40].decode()


def error_of(failure: Failure) -> RunError:
    frames = shown(failure.traceback[-TRACEBACK_CHARACTERS:])[-TRACEBACK_CHARACTERS:]
    return RunError(
        type=shown(failure.type[:100])[:100],
        message=shown(failure.message[:MESSAGE_CHARACTERS])[:MESSAGE_CHARACTERS],
        traceback=frames or msgspec.UNSET,
    )


def logs_preview(log: Log) -> str:
    """Head and tail of the log in at most 2048 bytes, with a line between that says how many of its bytes were left
    out. Cut first, then made fit to be shown: a log of megabytes is not looked through."""
    head, tail = log.head, log.tail
    if not log.dropped:
        head = tail = log.head + log.tail
        whole = _readable(head[: LOGS_PREVIEW_BYTES + 1])
        if len(head) <= LOGS_PREVIEW_BYTES and len(whole.encode()) <= LOGS_PREVIEW_BYTES:
            return whole
    room = (LOGS_PREVIEW_BYTES - 64) // 2
    first, last = _fitting(head, room, _beginning), _fitting(tail, room, _end)
    left_out = len(log.head) + len(log.tail) + log.dropped - len(first) - len(last)
    return f"{_readable(first)}\n… {left_out} bytes left out …\n{_readable(last)}"


def whole_log(log: Log, preview: str) -> bytes | None:
    """All that was kept of the log, with a line that says how much was not; None where the preview is all of it."""
    if not log.dropped and len(log.head) + len(log.tail) <= LOGS_PREVIEW_BYTES:
        kept = log.head + log.tail
        return None if preview == _readable(kept) else kept
    if not log.dropped:
        return log.head + log.tail
    return log.head + f"\n… {log.dropped} bytes were not kept …\n".encode() + log.tail


def _fitting(text: bytes, room: int, cut: Callable[[bytes, int], bytes]) -> bytes:
    """As much of one side of a text as fits when it is shown; of one that grows by that, a quarter."""
    piece = cut(text, room)
    return piece if len(_readable(piece).encode()) <= room else cut(text, room // LONGEST_SHOWN)


def _beginning(text: bytes, size: int) -> bytes:
    """At most so many bytes, and no part of a character at the cut."""
    while 0 < size < len(text) and text[size] & 0xC0 == 0x80:
        size -= 1
    return text[:size]


def _end(text: bytes, size: int) -> bytes:
    start = max(0, len(text) - size)
    while 0 < start < len(text) and text[start] & 0xC0 == 0x80:
        start += 1
    return text[start:]


def _readable(piece: bytes) -> str:
    return shown(piece.decode("utf-8", "replace"))


def small_output(result: bytes) -> msgspec.Raw | None:
    """The output as it is, None where it is too large to be answered inline."""
    return msgspec.Raw(result) if len(result) <= OUTPUT_BYTES else None


def large_output(result: bytes, blob_id: str | None) -> dict[str, Any]:
    preview = result[:PREVIEW_BYTES].decode("utf-8", "ignore")
    return {"blob_id": blob_id, "size_bytes": len(result), "preview": preview}


def shown(text: str) -> str:
    """Text that can stand in JSON, in a database and on a terminal: no control characters, no lone surrogates."""
    text = text.replace("\r\n", "\n").encode("utf-8", "replace").decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
