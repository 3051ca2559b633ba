"""JSON values from callers: the values that a manifest may contain, and the comparison of values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NoReturn

import msgspec

from skillery.formats.wording import Problem, has_surrogate, printable, quoted

MAX_DEPTH = 32
MAX_VALUES = 128 * 1024
"""The maximum number of values of a manifest. 256 KiB of JSON cannot contain more: each value takes at least a
character and a comma.
"""

_KINDS: dict[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    tuple: "an array",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """Return the JSON type of a value with an article: `a string`, `null`, `an array`."""
    if isinstance(value, Mapping):
        return "an object"
    return _KINDS.get(type(value), f"no JSON value ({type(value).__name__})")


MOST_SLOW_NUMBERS = 2_500
"""The maximum number of slow numbers in a request. A slow number (see `slow_numbers`) takes up to 17 µs to decode,
300 times as long as a short number.
"""
SHORTEST_SLOW = 5
"""The bytes of the shortest slow number, for example `0e100`."""
MOST_SLOW_IN_MANIFEST = 16
"""The maximum number of slow numbers in a manifest: a list of skills decodes many manifests."""
_SLOW_NUMBER = re.compile(rb"[0-9.][eE][+-]?0*[0-9]{3}|[0-9]{100}")


def slow_numbers(text: bytes) -> int:
    """Return how many numbers of a JSON text are slow to parse or print: each exponent of three digits, and each 100
    digits of a long number.

    Digits inside strings are counted too.
    """
    return len(_SLOW_NUMBER.findall(text))


def is_slow(number: float) -> bool:
    """Return whether a number is slow to print: its JSON text has an exponent of three digits."""
    return abs(number) >= 1e100 or 0 < abs(number) < 1e-99


def value_problems(value: object, where: str = "", *, nullable: bool = False) -> Iterator[Problem]:
    """Yield the problems that prevent a value from being part of a manifest, at any depth. `where` is the key path of
    the value.

    Problems are null (unless `nullable`), NUL, lone surrogates, numbers that TOML or JSON cannot represent, keys that
    are not strings, and depth over MAX_DEPTH. Too many values or slow numbers are a problem that ends the search. The
    values inside a refused value are not visited, so that hostile input costs little.
    """
    pending: list[tuple[str, object, int]] = [(where, value, 1)]
    value_count = slow = 0
    while pending:
        value_count += 1
        path, current, depth = pending.pop()
        slow += isinstance(current, float) and is_slow(current)
        if slow > MOST_SLOW_IN_MANIFEST:
            too_many = (
                f"is more than the manifest may contain: {MOST_SLOW_IN_MANIFEST} numbers with exponents of three digits"
            )
            yield Problem(f"{path or 'the manifest'} {too_many}", path=path or None)
            return
        message = _nesting_problem(current, depth) or _scalar_problem(current)
        if message and not (nullable and current is None):
            yield Problem(f"{path or 'the manifest'} {message}", path=path or None)
        elif isinstance(current, Mapping | list | tuple) and value_count + len(pending) + len(current) > MAX_VALUES:
            yield Problem(
                f"{path or 'the manifest'} is more than the manifest may contain: {MAX_VALUES} values",
                path=path or None,
            )
            return
        elif isinstance(current, Mapping):
            pending.extend((join(path, key), current[key], depth + 1) for key in reversed(current))
            yield from _key_problems(path, current)
        elif isinstance(current, list | tuple):
            pending.extend((f"{path}[{i}]", current[i], depth + 1) for i in reversed(range(len(current))))


def copy(value: object) -> object:
    """Return an equal value with new dicts and lists."""
    if isinstance(value, Mapping):
        return {key: copy(member) for key, member in value.items()}
    return [copy(item) for item in value] if isinstance(value, list | tuple) else value


def join(path: str, key: object) -> str:
    """Return the printable path of `key` in the object at `path`."""
    key_text = printable(str(key), 64)
    return f"{path}.{key_text}" if path else key_text


def same(left: object, right: object) -> bool:
    """Return whether two JSON values are equal. `1` equals `1.0`, and `1` differs from `true`.

    Sizes are compared first, so the smaller value limits the work. `difference` also returns the path of the first
    difference.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return len(left) == len(right) and all(key in left and same(left[key], member) for key, member in right.items())
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return _same_scalar(left, right)


def difference(left: object, right: object, path: str = "") -> str | None:
    """Return the path of the first difference between two JSON values, or None if they are equal.

    `path` is the key path of both values, and the result if they differ as a whole.
    """
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return _object_difference(left, right, path)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return _array_difference(left, right, path)
    return None if _same_scalar(left, right) else path


def _same_scalar(left: object, right: object) -> bool:
    """Return whether two scalars are equal. `1` equals `1.0`. Otherwise values of different types differ, also if one
    is an array or an object.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return left == right
    return type(left) is type(right) and left == right


def is_larger(value: object, most: int) -> bool:
    """Return whether the value has more than `most` values, keys and characters together. Stop counting at `most`.

    An item of an array counts twice.
    """
    pending, remaining = [value], most
    while pending and remaining >= 0:
        current = pending.pop()
        remaining -= 1 + (len(current) if isinstance(current, str | Mapping | list | tuple) else 0)
        if remaining >= 0 and isinstance(current, Mapping):
            remaining -= sum(map(len, current))
            pending.extend(current.values())
        elif remaining >= 0 and isinstance(current, list | tuple):
            pending.extend(current)
    return remaining < 0


def _object_difference(left: Mapping[str, object], right: Mapping[str, object], path: str) -> str | None:
    for key in chain(left, (key for key in right if key not in left)):
        if key not in left or key not in right:
            return join(path, key)
        differing = difference(left[key], right[key], join(path, key))
        if differing is not None:
            return differing
    return None


def _array_difference(left: Sequence[object], right: Sequence[object], path: str) -> str | None:
    if len(left) != len(right):
        return path
    differing_paths = (
        difference(left_item, right_item, f"{path}[{i}]")
        for i, (left_item, right_item) in enumerate(zip(left, right, strict=True))
    )
    return next((differing_path for differing_path in differing_paths if differing_path is not None), None)


def _nesting_problem(value: object, depth: int) -> str | None:
    if depth > MAX_DEPTH and isinstance(value, Mapping | list | tuple):
        return f"is nested deeper than {MAX_DEPTH} levels"
    return None


def _scalar_problem(value: object) -> str | None:
    if isinstance(value, str):
        return text_problem(value)
    if isinstance(value, bool | Mapping | list | tuple):
        return None
    if isinstance(value, int):
        return None if -(2**63) <= value < 2**63 else "is an integer beyond 64 bits"
    if isinstance(value, float):
        return None if math.isfinite(value) else "is not a finite number"
    return "is null; leave the key out instead" if value is None else f"is {kind_of(value)}"


def text_problem(text: str) -> str | None:
    """Return the reason why a text cannot be stored, or None if it can be stored. The reason is a clause for a
    message.
    """
    if "\x00" in text:
        return "contains a NUL character"
    return "contains half a character (a lone surrogate)" if has_surrogate(text) else None


def _key_problems(path: str, table: Mapping[object, object]) -> Iterator[Problem]:
    for key in table:
        message = text_problem(key) if isinstance(key, str) else "is not a string"
        if message:
            key_path = join(path, key)
            yield Problem(f"the key {quoted(str(key))} {message}", path=key_path)


# -- JSON texts of authors: why a text cannot be read, and which objects repeat a key ----------------------------------


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
        reason, line = _reason(error)
        return Unreadable(f"is not JSON (line {line}): {reason}", line)
    except ValueError:  # NaN, Infinity, an integer of thousands of digits
        return Unreadable("contains a number that JSON does not have")
    except RecursionError:
        return Unreadable("is nested too deep")


def _reason(error: json.JSONDecodeError) -> tuple[str, int]:
    """Return what to change at the place where the text is not JSON, and the number of its line."""
    # The position of a trailing comma is the comma since Python 3.13, and the bracket before.
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :].lstrip()[:1]
    if "trailing comma" in error.msg or (before.endswith(",") and after in {"]", "}"}):
        return "remove the comma before the closing bracket", before.count("\n") + 1
    if after == "'":
        return "write texts in double quotes", error.lineno
    return f"{error.msg[:1].lower()}{error.msg[1:]}", error.lineno


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    repeated = Repeated(table)
    seen: set[str] = set()
    repeated.key = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return repeated


def repeated(value: object) -> Iterator[Repeated]:
    """Yield all objects inside `value` that have a duplicate key, at any depth."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, Repeated):
            yield value
        if isinstance(value, Mapping):
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
