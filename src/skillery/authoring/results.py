"""The report of `skillery test`: one result for each problem, example and test of a folder."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, Literal

import msgspec
import tomlkit
from tomlkit.items import InlineTable, Item, Table

from skillery.backends import Outcome
from skillery.formats.examples import Example, Examples
from skillery.formats.wording import AGAIN, Problem
from skillery.publishing.example_runs import NO_RETURN, Tested

Subject = Literal["check", "example", "test"]
Status = Literal["passed", "failed", "skipped", "updated"]


class Result(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result. `message` has several lines if the run failed or its output differs."""

    subject: Subject
    name: str
    status: Status
    message: str = ""
    file: str | None = None
    line: int | None = None
    duration_ms: float = 0.0


class Report(msgspec.Struct, frozen=True):
    """The results of a folder. `name` and `version` are empty if its manifest cannot be read."""

    folder: str
    name: str
    version: str
    results: tuple[Result, ...]
    warnings: tuple[str, ...] = ()
    search: str = ""
    """How many words of the examples a search finds in the texts of the skill."""

    @property
    def ok(self) -> bool:
        return all(result.status != "failed" for result in self.results)


def failed_checks(problems: Sequence[Problem], hint: str | None = None) -> tuple[Result, ...]:
    """Return a failed result for each problem of a bundle."""
    remedy = f"\n{hint}" if hint and not hint.endswith(AGAIN) and len(problems) == 1 else ""
    return tuple(
        Result(
            "check",
            problem.path or problem.file or "bundle",
            "failed",
            problem.message + remedy,
            problem.file,
            problem.line,
        )
        for problem in problems
    )


# -- The results of examples: the differences between expected and actual values ---------------------------------------


MAX_DIFF_BYTES = 64 * 1024
MAX_DIFF_LINES = 60
MAX_LOG_LINES = 20
WAITS = "needs network or secrets: --allow-network and --with-secrets-from FILE give them, and publishing runs it"


def example_results(examples: Examples, tested: Tested, timeout_ms: int) -> list[Result]:
    """Return a result for each example. `timeout_ms` is the limit of each example."""
    failures = iter(tested.findings)
    outcomes = tested.outcomes or (None,) * len(examples.read)
    rows = zip(examples.read, examples.lines, tested.examples, outcomes, strict=True)
    results = []
    for example, line, checked_example, outcome in rows:
        if checked_example.status == "waiting":
            results.append(Result("example", example.name, "skipped", WAITS, "skill.toml", line))
            continue
        is_passed = checked_example.status == "passed"
        text = "" if is_passed else next(failures).message.removeprefix(f"{example.name}: ")
        message = "" if is_passed else "\n".join(_failure_lines(example, outcome, text, timeout_ms))
        took = checked_example.duration_ms or 0.0
        results.append(
            Result("example", example.name, "passed" if is_passed else "failed", message, "skill.toml", line, took)
        )
    return results


def _failure_lines(example: Example, outcome: Outcome | None, text: str, timeout_ms: int) -> Iterator[str]:
    """Yield the lines about a failed example: a diff of the outputs, or the failure with its traceback and the end of
    its log. `outcome` is None if the example did not run. `text` is the message of its finding.
    """
    failure = outcome.failure if outcome else None
    if outcome is not None and failure is None and (diff := _output_diff(example, outcome)):
        yield diff
        # The diff replaces `text`, and shows only a null.
        if text.endswith(NO_RETURN):
            yield NO_RETURN
        return
    yield text
    if outcome is None or failure is None:
        return
    if failure.traceback.strip():
        yield failure.traceback.strip()
    if log := _end_of_log(outcome):
        yield log
    if failure.type == "TimeoutError":
        yield f"an example may take {timeout_ms} ms here (--timeout-ms)"


def _output_diff(example: Example, outcome: Outcome) -> str:
    """Return a diff of the expected and the actual output, or "" if no output is expected or the actual one is too
    large.
    """
    if example.expectation not in {"expect", "expect_subset"} or len(outcome.result or b"") > MAX_DIFF_BYTES:
        return ""
    actual = msgspec.json.decode(outcome.result or b"null")
    if example.expectation == "expect_subset":
        actual = like(example.expected, actual)
    line_lists = (_lines(example.expected), _lines(actual))
    diff = list(unified_diff(*line_lists, "expected", "actual", lineterm="", n=2))
    left_out = len(diff) - MAX_DIFF_LINES
    return "\n".join([*diff[:MAX_DIFF_LINES], *([f"… {left_out} more lines"] if left_out > 0 else [])])


def like(expected: object, actual: object) -> object:
    """Return the part of the actual output that `expect_subset` compares with `expected`."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {key: like(value, actual[key]) for key, value in expected.items() if key in actual}
    return actual


def _lines(value: object) -> list[str]:
    sorted_json = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(sorted_json, indent=2).decode().splitlines()


def _end_of_log(outcome: Outcome) -> str:
    text = (outcome.log.tail or outcome.log.head).decode("utf-8", "replace").rstrip()
    lines = text.splitlines()[-MAX_LOG_LINES:]
    return "\n".join(["log:", *(f"  {line}" for line in lines)]) if lines else ""


# -- --update: actual values become expectations in skill.toml, without other changes ----------------------------------


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
