"""The comparison of a run's output with the expected output of an example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from skillery.formats.json_values import join, kind_of, same
from skillery.formats.wording import printable

MOST_SHOWN = 10
"""The maximum number of differences that one comparison returns."""
_SHOWN_CHARACTERS = 80


def differences(expected: object, output: object, *, subset: bool) -> list[str]:
    """Return a line such as `output.rows: expected 3, got 4` for each difference, at most MOST_SHOWN lines.

    With `subset`, objects may have more keys than expected, except inside arrays: objects there must have exactly the
    expected keys. `1` equals `1.0` and differs from `true`.
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
    """Return a JSON value on one line: short values as JSON, long ones cut or described by kind and size."""
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
