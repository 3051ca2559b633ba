"""`skillery test --update`: write actual values into skill.toml as expectations, without other changes."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.items import InlineTable, Item, Table

from skillery.authoring.results import Result, like
from skillery.backends import Outcome
from skillery.formats.examples import Example

_BLOB_ID = re.compile(r"blob:[0-9A-Za-z]{22}")


class _NotWritable(Exception):
    """Raised if an actual value cannot be an expectation. The message says why."""


class _Omitted:
    """A value that cannot be expected: null, which TOML does not have, or the random id of a blob."""


def update_expectations(
    skill_toml: Path, examples: Sequence[Example], results: Sequence[Result], outcomes: Sequence[Outcome | None]
) -> list[Result]:
    """Write the actual outputs of failed examples into skill.toml as expectations. Return all results, with the new
    status of these.

    An example whose run failed keeps its expected output: only the author knows which of the two is wrong.
    """
    document = tomlkit.parse(skill_toml.read_bytes().decode("utf-8-sig"))
    # unwrap() on an array of tables would copy it, so that a change would be lost.
    tables: Any = [*document.get("examples", []), *document.get("tool_examples", [])]
    rows = zip(tables, examples, results, outcomes, strict=True)
    updated = [_update(*row) for row in rows]
    if any(result.status == "updated" for result in updated):
        _write(skill_toml, tomlkit.dumps(document))
    return updated


def _update(table: Any, example: Example, result: Result, outcome: Outcome | None) -> Result:
    """Write the expectation of one example into its TOML table. Return the result with the status `updated`, or the
    reason why not.
    """
    if result.status != "failed" or outcome is None or example.expectation is None:
        return result
    try:
        if example.expectation == "expect_error":
            if outcome.failure is None:
                raise _NotWritable("the run completed: replace expect_error by expect or expect_subset yourself")
            table["expect_error"] = outcome.failure.type
        elif outcome.failure is not None:
            raise _NotWritable("the run failed, so there is no output to write")
        else:
            _set_output(table, example.expectation, example.expected, msgspec.json.decode(outcome.result or b"null"))
    except _NotWritable as error:
        return msgspec.structs.replace(result, message=f"{result.message}\nnot updated: {error}")
    return msgspec.structs.replace(result, status="updated")


def _set_output(table: Any, key: str, expected: object, actual: object) -> None:
    """Write the output as the expectation `key` of an example. If it contains null or ids of blobs, write expect_subset
    without them.
    """
    new_value = like(expected, actual) if key == "expect_subset" else actual
    expectable = _expectable(new_value)
    if isinstance(expectable, _Omitted):
        raise _NotWritable("the output is null or the id of a blob")
    if key == "expect" and expectable != new_value:
        del table["expect"]
        key = "expect_subset"
    _merge(table, key, expectable)


def _expectable(value: object, where: str = "output") -> Any:
    """Return the value without members that no expectation can have, or _Omitted if the whole value is such a member.
    `where` is its path.

    Raise _NotWritable if such a value is in an array.
    """
    if value is None or (isinstance(value, str) and _BLOB_ID.fullmatch(value)):
        return _Omitted()
    if isinstance(value, Mapping):
        members = {key: _expectable(member, f"{where}.{key}") for key, member in value.items()}
        return {key: member for key, member in members.items() if not isinstance(member, _Omitted)}
    if isinstance(value, list):
        for number, item in enumerate(value):
            if _expectable(item, f"{where}[{number}]") != item:
                raise _NotWritable(f"{where}[{number}] contains null or the id of a blob, which TOML cannot expect")
    return value


def _merge(container: Any, key: str, new: object) -> None:
    """Set a value in place, so that comments and the order of unchanged members stay."""
    old = container.get(key)
    if isinstance(old, Table | InlineTable) and isinstance(new, Mapping):
        for name in [name for name in old if name not in new]:
            del old[name]
        for name, value in new.items():
            _merge(old, name, value)
    elif old is None or old != new or isinstance(old, bool) != isinstance(new, bool):
        container[key] = _item(new)


def _item(value: object) -> Item:
    """Return a JSON value as an item of tomlkit."""
    if isinstance(value, Mapping):
        table = tomlkit.inline_table()
        for key, item in value.items():
            table.append(key, _item(item))
        return table
    if isinstance(value, list):
        array = tomlkit.array()
        for item in value:
            array.append(_item(item))
        return array
    return tomlkit.item(value)


def _write(path: Path, text: str) -> None:
    """Replace the file at once, so that an interrupted command leaves a complete file."""
    tomllib.loads(text)  # a fault of the writer must not destroy the file
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8", newline="")
    partial.chmod(path.stat().st_mode)
    partial.replace(path)
