"""The examples of a folder, run as publishing runs them, and the differences between expected and actual values."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skillery.authoring.checked_folder import ListedExample
from skillery.authoring.folder_runs import FolderRuns
from skillery.authoring.results import Result
from skillery.backends import BlobMount, Outcome, PackageMount
from skillery.formats.bundle import Bundle
from skillery.formats.examples import Example
from skillery.formats.ids import new_blob_id
from skillery.formats.manifest import Permissions
from skillery.publishing.example_results import blob_args, problem_of
from skillery.runs.trials import Trial, trial_job

MAX_DIFF_BYTES = 64 * 1024
MAX_DIFF_LINES = 60
MAX_LOG_LINES = 20
WHY_LESS = (
    "an example runs without network and secrets; if it needs them, set needs_permissions = true, and it runs when "
    "the version is published"
)


class Tried(NamedTuple):
    """The result of an example, and the outcome of its run. The outcome is None if the example did not run."""

    listed: ListedExample
    result: Result
    outcome: Outcome | None = None


class Mounted(NamedTuple):
    """A bundle with its files in a folder of this machine, and its packages."""

    bundle: Bundle
    folder: Path
    packages: tuple[PackageMount, ...] = ()


async def run_examples(
    runs: FolderRuns, mounted: Mounted, examples: Sequence[ListedExample], timeout_ms: int
) -> list[Tried]:
    """Run the examples and return their results in the given order. `timeout_ms` limits each of them."""
    return list(await asyncio.gather(*(_try(runs, mounted, one, timeout_ms) for one in examples)))


async def _try(runs: FolderRuns, mounted: Mounted, listed: ListedExample, timeout_ms: int) -> Tried:
    example = listed.example
    if listed.problems:
        return Tried(listed, _result(listed, "failed", "\n".join(one.message for one in listed.problems)))
    if example.needs_permissions:
        return Tried(listed, _result(listed, "skipped", "needs network or secrets: it runs at publication"))
    trial = _trial(mounted, example, timeout_ms)
    job, failure = trial_job(trial, runs.limits)
    if failure is not None:
        outcome = Outcome(failure=failure)
    else:
        outcome = await runs.run(job, packages=mounted.packages, why_less=trial.why_less)
    wrong = await problem_of(example, outcome)
    message = _message(example, outcome, wrong, timeout_ms) if wrong else ""
    return Tried(listed, _result(listed, "failed" if wrong else "passed", message, outcome.duration_ms), outcome)


def _trial(mounted: Mounted, example: Example, timeout_ms: int) -> Trial:
    manifest = mounted.bundle.manifest
    assert manifest.runtime is not None, "examples are checked with the bundle"
    ids = {path: new_blob_id() for path in example.files}
    has_more = bool(manifest.permissions.network or manifest.permissions.secrets)
    return Trial(
        manifest=manifest,
        runtime=manifest.runtime,
        digest=mounted.bundle.digest,
        folder=mounted.folder,
        args=example.args | blob_args(example, ids),
        blobs=tuple(BlobMount(blob_id, mounted.folder / path) for path, blob_id in ids.items()),
        timeout_ms=timeout_ms,
        permissions=Permissions(),
        why_less=WHY_LESS if has_more else "",
    )


def _result(listed: ListedExample, status: Any, message: str, duration_ms: float = 0.0) -> Result:
    name, line = listed.example.name, listed.line
    return Result("example", name, status, message, "skill.toml", line, round(duration_ms, 3))


def _message(example: Example, outcome: Outcome, wrong: str, timeout_ms: int) -> str:
    """Return what differs: a diff of the outputs, or the failure with its traceback and the end of its log."""
    failure = outcome.failure
    if failure is None:
        return _output_diff(example, outcome) or wrong
    lines = [wrong, failure.traceback.strip(), _end_of_log(outcome)]
    if failure.type == "TimeoutError":
        lines.append(f"an example may take {timeout_ms} ms here (--timeout-ms)")
    return "\n".join(line for line in lines if line)


def _output_diff(example: Example, outcome: Outcome) -> str:
    """Return a diff of the expected and the actual output, or "" if no output is expected or the actual one is too
    large.
    """
    if example.expectation not in {"expect", "expect_subset"} or len(outcome.result or b"") > MAX_DIFF_BYTES:
        return ""
    actual = msgspec.json.decode(outcome.result or b"null")
    if example.expectation == "expect_subset":
        actual = like(example.expected, actual)
    sides = (_lines(example.expected), _lines(actual))
    diff = list(unified_diff(*sides, "expected", "actual", lineterm="", n=2))
    left_out = len(diff) - MAX_DIFF_LINES
    return "\n".join([*diff[:MAX_DIFF_LINES], *([f"… {left_out} more lines"] if left_out > 0 else [])])


def like(expected: object, actual: object) -> object:
    """Return the part of the actual output that `expect_subset` compares."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {key: like(value, actual[key]) for key, value in expected.items() if key in actual}
    return actual


def _lines(value: object) -> list[str]:
    ordered = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(ordered, indent=2).decode().splitlines()


def _end_of_log(outcome: Outcome) -> str:
    text = (outcome.log.tail or outcome.log.head).decode("utf-8", "replace").rstrip()
    lines = text.splitlines()[-MAX_LOG_LINES:]
    return "\n".join(["log:", *(f"  {line}" for line in lines)]) if lines else ""
