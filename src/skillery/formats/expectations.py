"""What an example expects of its run, and where the run's output differs from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from skillery.formats.json_values import join, kind_of, same
from skillery.formats.wording import printable

MOST_SHOWN = 10
"""Differences that are told of one output."""
_SHOWN_CHARACTERS = 80


def differences(expected: object, output: object, *, subset: bool) -> list[str]:
    """`output.rows: expected 3, got 4` for each place where a run's output is not what was expected; the first ten.

    With `subset` an object may have more keys than are expected, wherever only objects lie above it; arrays and all
    else are equal. `1` is `1.0` and not `true`.
    """
    return list(islice(_differences(expected, output, "output", subset), MOST_SHOWN))


def _differences(expected: object, got: object, path: str, subset: bool) -> Iterator[str]:
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        yield from _in_objects(expected, got, path, subset)
    elif isinstance(expected, list) and isinstance(got, list):
        yield from _in_arrays(expected, got, path)
    elif not same(expected, got):
        yield f"{path}: expected {shown_value(expected)}, got {shown_value(got)}"


def _in_objects(expected: Mapping[str, object], got: Mapping[str, object], path: str, subset: bool) -> Iterator[str]:
    for key, value in expected.items():
        if key in got:
            yield from _differences(value, got[key], join(path, key), subset)
        else:
            yield f"{join(path, key)}: expected {shown_value(value)}, got nothing"
    for key in got if not subset else ():
        if key not in expected:
            yield f"{join(path, key)}: expected nothing, got {shown_value(got[key])}"


def _in_arrays(expected: list[object], got: list[object], path: str) -> Iterator[str]:
    if len(expected) != len(got):
        yield f"{path}: expected {_items(len(expected))}, got {_items(len(got))}"
    for place, (one, other) in enumerate(zip(expected, got, strict=False)):
        yield from _differences(one, other, f"{path}[{place}]", False)


def shown_value(value: object) -> str:
    """A JSON value in a line: short ones as JSON, others by their kind and size."""
    if isinstance(value, Mapping) and len(value) > _SHOWN_CHARACTERS:
        return f"{kind_of(value)} with {len(value)} keys"
    if isinstance(value, list) and len(value) > _SHOWN_CHARACTERS:
        return _items(len(value))
    if isinstance(value, str):
        return printable(msgspec.json.encode(value[: 2 * _SHOWN_CHARACTERS]).decode(), _SHOWN_CHARACTERS)
    try:
        text = msgspec.json.encode(value).decode()
    except RecursionError:
        return kind_of(value)
    return printable(text[: 2 * _SHOWN_CHARACTERS], _SHOWN_CHARACTERS)


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"
