"""Runs of the examples of a skill, in the same way as other runs, and their results."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from skillery.backends import BlobMount, Failure, Finding, Identity, Outcome, Publication, PublishedFile
from skillery.context.threads import BIG_TEXT, JSON
from skillery.formats.bundle import SKILL_TOML
from skillery.formats.check_results import CheckedExample
from skillery.formats.examples import Example, Examples, read_examples
from skillery.formats.graders import Answer, Grade, differences, schema_files
from skillery.formats.manifest import Manifest, Permissions, Runtime, parse_manifest
from skillery.formats.texts import new_blob_id
from skillery.formats.tools import FILE as TOOLS_JSON
from skillery.formats.tools import Tool, read_tools
from skillery.formats.wording import printable
from skillery.runs.trials import LentFiles, RecordedTrials, Trial

# -- The run of an example, compared with its expectation --------------------------------------------------------------


_MESSAGE_CHARACTERS = 400
NO_RETURN = "the function returned nothing: end it with return VALUE"


def blob_args(example: Example, ids: Mapping[str, str]) -> dict[str, Any]:
    """Return the args that are blobs. `ids` are the ids of the blobs by their path in the bundle."""
    return {
        argument: ids[value] if isinstance(value, str) else [ids[path] for path in value]
        for argument, value in example.blobs.items()
    }


async def problem_of(example: Example, outcome: Outcome) -> str:
    """Return why the run does not have the expected result, or "" if it has. Graders do not count."""
    if len(outcome.result or b"") > BIG_TEXT:
        return await JSON.run(_find_problem, example, outcome)
    return _find_problem(example, outcome)


def _find_problem(example: Example, outcome: Outcome) -> str:
    """Return why the outcome is not the expected one, or "". Blocking: large results take some time to compare."""
    failure = outcome.failure
    if example.expectation == "expect_error":
        return _failure_problem(str(example.expected), failure)
    if failure is not None:
        return f"failed with {_shown(failure)}"
    if example.expectation is None:
        return ""
    try:
        output = msgspec.json.decode(outcome.result or b"null")
        mismatches = differences(example.expected, output, subset=example.expectation == "expect_subset")
        return "; ".join([*mismatches, *([NO_RETURN] if mismatches and output is None else [])])
    except RecursionError:
        return "output: nested too deep to compare"


def _failure_problem(expected: str, failure: Failure | None) -> str:
    if failure is None:
        return f"expected a failure of type {expected}, but the run completed"
    return "" if failure.type == expected else f"expected a failure of type {expected}, got {_shown(failure)}"


def _shown(failure: Failure) -> str:
    return f"{failure.type}: {printable(failure.message.replace(chr(10), ' '), _MESSAGE_CHARACTERS)}"


RULE = "examples"
LEAST_MS = 5
"""If fewer milliseconds are left for the examples of a version, no further example is started."""
_WHY_LESS = (
    "an example runs without network and secrets; if it needs them, set needs_permissions = true, and it runs when "
    "the version is published"
)


class Tested(NamedTuple):
    """The results of all examples in order, and a finding for each example that failed or was not run."""

    examples: tuple[CheckedExample, ...]
    findings: tuple[Finding, ...]
    outcomes: tuple[Outcome | None, ...] = ()
    """The outcome of each example, or None for an example that did not run."""


class Subject(NamedTuple):
    """The skill whose examples run."""

    manifest: Manifest
    digest: str
    files: Sequence[PublishedFile]


class StoredExamples(NamedTuple):
    """The examples of a stored version, and its tools by name."""

    subject: Subject
    examples: Examples
    tools: Mapping[str, Tool]


def stored_examples(publication: Publication, kind: str) -> StoredExamples:
    """Return the examples of a stored version of this kind of skill."""
    contents = {file.path: file.content for file in publication.files}
    manifest = parse_manifest(publication.manifest, has_tools=kind == "action")
    tools = read_tools(contents[TOOLS_JSON], frozenset(contents)).tools if TOOLS_JSON in contents else ()
    examples = read_examples(manifest, frozenset(contents), contents[SKILL_TOML].decode("utf-8", "replace"), tools)
    subject = Subject(manifest, publication.digest, publication.files)
    return StoredExamples(subject, examples, {tool.name: tool for tool in tools})


class ExampleRuns:
    """Runs the examples of a skill one after the other. Each run waits in the queue like other runs of the
    publisher.
    """

    def __init__(
        self,
        runner: RecordedTrials,
        cache: LentFiles,
        grade: Grade,
        seconds: float,
        timeout_ms: float | None = None,
    ) -> None:
        """Store the parts. `seconds` limits all examples of one version together, without their time in the queue.
        `timeout_ms` limits each run.
        """
        self._most_ms = seconds * 1000 if timeout_ms is None else timeout_ms
        self._runner = runner
        self._cache = cache
        self.grade = grade
        self._seconds = seconds

    async def test(
        self,
        identity: Identity,
        subject: Subject,
        examples: Examples,
        *,
        permitted: bool,
        known: Sequence[CheckedExample] = (),
    ) -> Tested:
        """Run the examples and return their results. Raise Busy or Unavailable if an example cannot be run.

        If not `permitted`, examples that need permissions do not run: their status is `waiting`. Examples that passed
        according to the earlier results `known` do not run again.
        """
        passed = {example.name: example for example in known if example.status == "passed"}
        waiting = {example.name for example in examples.read if example.needs_permissions and not permitted}
        if all(example.name in passed or example.name in waiting for example in examples.read):
            return Tested(tuple(passed.get(example.name) or _waits(example) for example in examples.read), ())
        folder = await asyncio.to_thread(self._cache.lend, subject.files)
        try:
            return await self._test(identity, subject, folder, examples, passed, waiting)
        finally:
            await asyncio.to_thread(self._cache.take_back, folder)

    async def _test(
        self,
        identity: Identity,
        subject: Subject,
        folder: Path,
        examples: Examples,
        passed: dict[str, CheckedExample],
        waiting: set[str],
    ) -> Tested:
        """Run the examples that are neither in `passed` nor in `waiting`, until the time is used up."""
        left_ms = self._seconds * 1000
        results: list[CheckedExample] = []
        findings: list[Finding] = []
        outcomes: list[Outcome | None] = [None] * len(examples.read)
        for number, (example, line) in enumerate(zip(examples.read, examples.lines, strict=True)):
            if example.name in passed or example.name in waiting:
                results.append(passed.get(example.name) or _waits(example))
                continue
            if left_ms < LEAST_MS:
                results.append(CheckedExample(example.name, "not_run"))
                findings.append(_finding(example, line, f"was not run: {self._time_limit()}"))
                continue
            result, problem, outcome = await self._try(identity, subject, folder, example, min(left_ms, self._most_ms))
            left_ms -= outcome.duration_ms
            outcomes[number] = outcome
            results.append(result)
            if problem:
                time_note = f"; {self._time_limit()}" if left_ms < LEAST_MS else ""
                run_note = f" ({result.run_id})" if result.run_id else ""
                findings.append(_finding(example, line, f"{problem}{time_note}{run_note}"))
        return Tested(tuple(results), tuple(findings), tuple(outcomes))

    async def _try(
        self, identity: Identity, subject: Subject, folder: Path, example: Example, left_ms: float
    ) -> tuple[CheckedExample, str, Outcome]:
        """Run one example for at most `left_ms`. Return its result, the problem ("" if it passed), and the outcome."""
        runtime, permissions = subject.manifest.runtime, subject.manifest.permissions
        ids = {path: new_blob_id() for path in example.files}
        has_more = bool(permissions.network or permissions.secrets) and not example.needs_permissions
        trial = Trial(
            manifest=subject.manifest,
            runtime=runtime or Runtime(),
            digest=subject.digest,
            folder=folder,
            args=example.args | blob_args(example, ids),
            blobs=tuple(BlobMount(blob_id, folder / path) for path, blob_id in ids.items()),
            timeout_ms=max(1, int(left_ms)),
            permissions=Permissions() if has_more else permissions,
            why_less=_WHY_LESS if has_more else "",
            tool=example.tool,
        )
        run_id, outcome = await self._runner.try_skill(identity, trial)
        problem = await problem_of(example, outcome) or await self._grade(identity, subject, example, outcome)
        if problem and has_more and _WHY_LESS not in problem:
            problem += f"; {_WHY_LESS}"
        status: Any = "failed" if problem else "passed"
        return CheckedExample(example.name, status, run_id, round(outcome.duration_ms, 3)), problem, outcome

    async def _grade(self, identity: Identity, subject: Subject, example: Example, outcome: Outcome) -> str:
        """Return why the outcome of an example does not pass its graders, or ""."""
        if not example.graders:
            return ""
        paths = {*schema_files(example.graders)}
        files = {file.path: file.content for file in subject.files if file.path in paths}
        log = (outcome.log.head + outcome.log.tail).decode("utf-8", "replace")
        answer = Answer(outcome.result or b"null", log)
        return "; ".join(filter(None, await self.grade(identity.name, example.graders, answer, files)))

    def _time_limit(self) -> str:
        setting = "the setting publishing.examples_seconds"
        return f"the examples of one version may take {self._seconds:g} s together ({setting})"


def _waits(example: Example) -> CheckedExample:
    return CheckedExample(example.name, "waiting")


def _finding(example: Example, line: int | None, message: str) -> Finding:
    return Finding(RULE, f"{example.name}: {message}", "error", "skill.toml", line)
