"""From what a sandbox says to what a caller is told. Everything a sandbox says is untrusted."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from skillery.backends import Failure, Log, Outcome

OUTPUT_BYTES = 4096
PREVIEW_BYTES = 512
LOGS_PREVIEW_BYTES = 2048
SUMMARY_CHARACTERS = 500
MESSAGE_CHARACTERS = 1000
TRACEBACK_CHARACTERS = 4000
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def checked(outcome: Outcome) -> Outcome:
    """The outcome, failed where its result is no JSON."""
    if outcome.failure is not None:
        return outcome
    try:
        # As text: msgspec skips over the bytes of a string without looking whether they are UTF-8.
        msgspec.json.decode((outcome.result or b"").decode(), type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        failure = Failure("InvalidOutput", "the returned value is not JSON")
        return msgspec.structs.replace(outcome, result=None, failure=failure)
    return outcome


def summary_of(outcome: Outcome) -> str:
    """What the code set, else `output["summary"]`, else a sentence; at most 500 characters."""
    text = outcome.summary or _own_summary(outcome) or _generated(outcome)
    return _shown(text)[:SUMMARY_CHARACTERS]


def _own_summary(outcome: Outcome) -> str | None:
    if not outcome.result or not outcome.result.startswith(b"{"):
        return None
    summary = msgspec.json.decode(outcome.result, type=dict[str, msgspec.Raw]).get("summary")
    if summary is None or not bytes(summary).startswith(b'"'):
        return None
    return msgspec.json.decode(summary, type=str)


def _generated(outcome: Outcome) -> str:
    if outcome.failure is not None:
        first = (outcome.failure.message.strip().splitlines() or [""])[0]
        return f"Failed with {outcome.failure.type}: {first}" if first else f"Failed with {outcome.failure.type}."
    return f"Completed in {outcome.duration_ms:.0f} ms and returned {_described(outcome.result or b'null')}."


def _described(result: bytes) -> str:
    match result[:1]:
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


def error_of(failure: Failure) -> dict[str, str]:
    error = {"type": _shown(failure.type)[:100], "message": _shown(failure.message)[:MESSAGE_CHARACTERS]}
    if failure.traceback:
        error["traceback"] = _shown(failure.traceback)[-TRACEBACK_CHARACTERS:]
    return error


def logs_preview(log: Log) -> str:
    """Head and tail of the log in at most 2048 bytes, with a line between that says how much was left out."""
    text = _shown((log.head + log.tail).decode("utf-8", "replace")).encode()
    if len(text) <= LOGS_PREVIEW_BYTES and not log.dropped:
        return text.decode()
    head = _shown(log.head.decode("utf-8", "replace")).encode()
    tail = _shown(log.tail.decode("utf-8", "replace")).encode() if log.tail else head
    room = (LOGS_PREVIEW_BYTES - 64) // 2
    whole = len(text) + log.dropped
    shown_head, shown_tail = head[:room].decode("utf-8", "ignore"), tail[-room:].decode("utf-8", "ignore")
    left_out = whole - len(shown_head.encode()) - len(shown_tail.encode())
    return f"{shown_head}\n… {left_out} bytes left out …\n{shown_tail}"


def small_output(result: bytes) -> msgspec.Raw | None:
    """The output as it is, None where it is too large to be answered inline."""
    return msgspec.Raw(result) if len(result) <= OUTPUT_BYTES else None


def large_output(result: bytes, blob_id: str | None) -> dict[str, Any]:
    preview = result[:PREVIEW_BYTES].decode("utf-8", "ignore")
    return {"blob_id": blob_id, "size_bytes": len(result), "preview": preview}


def _shown(text: str) -> str:
    """Text that can stand in JSON, in a database and on a terminal: no control characters, no lone surrogates."""
    text = text.replace("\r\n", "\n").encode("utf-8", "replace").decode()
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
