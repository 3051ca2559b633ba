"""JSON texts of authors: why a text cannot be read, and which objects repeat a key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NoReturn

import msgspec

MAX_BYTES = 1024 * 1024


class Unreadable(msgspec.Struct, frozen=True):
    """The reason why a text cannot be read, as the end of a sentence."""

    why: str
    line: int | None = None


class Repeated(dict[str, object]):
    """A JSON object with a duplicate key. Python uses the last value; another reader of the file may use the first
    value.
    """

    key: str


def read_json(data: bytes) -> object:
    """Return the value of a JSON text of at most MAX_BYTES, with objects with a duplicate key as `Repeated`. Return
    Unreadable if the text cannot be read.
    """
    if len(data) > MAX_BYTES:
        return Unreadable(f"has {len(data)} bytes, at most {MAX_BYTES} are read")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant, object_pairs_hook=_object)
    except UnicodeDecodeError:
        return Unreadable("is not UTF-8 text")
    except json.JSONDecodeError as error:
        return Unreadable(f"is not JSON (line {error.lineno}): {_reason(error)}", error.lineno)
    except ValueError:  # NaN, Infinity, an integer of thousands of digits
        return Unreadable("contains a number that JSON does not have")
    except RecursionError:
        return Unreadable("is nested too deep")


def _reason(error: json.JSONDecodeError) -> str:
    """Return what to change at the place where the text is not JSON."""
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()[:1]
    if "trailing comma" in error.msg or (before.endswith(",") and after in {"]", "}"}):
        return "remove the comma before the closing bracket"
    if after == "'":
        return "write texts in double quotes"
    return f"{error.msg[:1].lower()}{error.msg[1:]}"


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated = Repeated(found)
    seen: set[str] = set()
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated


def repeated(value: object) -> Iterator[Repeated]:
    """Yield all objects inside `value` that have a duplicate key, at any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Repeated):
            yield value
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
