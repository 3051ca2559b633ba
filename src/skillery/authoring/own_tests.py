"""The tests in the folder `tests/` of a skill, run in the sandbox.

If a test takes too long, the code in the sandbox stops the test. If that is impossible, or if a test ends the process,
the whole run is stopped. This test has then failed, and another run executes the remaining tests.
"""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import msgspec

from skillery.authoring.folder_host import no_stored_lock
from skillery.authoring.folder_runs import AUTHOR, FolderRuns
from skillery.authoring.lint import lint, placed, search_line
from skillery.authoring.results import Report, Result, Status, example_results, failed_checks, update_expectations
from skillery.backends import CodeCall, Finding, Job, Outcome, PackageMount, Progress, SkillMount
from skillery.errors import InvalidParams, SkilleryError
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, Bundle, BundleFile
from skillery.formats.check_results import CheckFinding
from skillery.formats.names import import_name
from skillery.formats.skill_md import SkillMd
from skillery.formats.texts import new_run_id
from skillery.formats.wording import problems_of
from skillery.publishing.example_runs import Subject, Tested
from skillery.publishing.folders import SkillFolder, read_plain_folder, read_skill_folder, refuse_misspelt
from skillery.publishing.gate import Gate, as_found, publication_of, published_files
from skillery.publishing.package_locks import locks_of

CODE = Path(__file__).parent / "in_sandbox" / "run_tests.py"
Framework = Literal["unittest", "pytest"]
GRACE_SECONDS = 2.0
"""Time after the limit of a test in which the sandbox can stop the test itself."""
FIRST_SECONDS = 20.0
"""Time until the first test starts: pytest is imported first."""
MAX_RUNS = 20
"""Limit on the runs for one folder. Each run but the last ends because of one test."""


def test_files(bundle: Bundle) -> list[BundleFile]:
    """Return the files with tests, found by the rules of unittest and pytest."""
    return [file for file in bundle.files if _is_test(PurePosixPath(file.path))]


def framework_of(bundle: Bundle) -> Framework | None:
    """Return the framework that runs the tests, or None if there are no tests. The framework is pytest if a test or a
    conftest.py uses it, else unittest, which needs no packages.
    """
    files = test_files(bundle)
    if not files:
        return None
    conftests = (file for file in bundle.files if file.path.startswith("tests/") and file.path.endswith("conftest.py"))
    return "pytest" if any(_uses_pytest(file.content) for file in [*files, *conftests]) else "unittest"


async def run_tests(runs: FolderRuns, bundle: Bundle, timeout_ms: int, *, enabled: bool) -> list[Result]:
    """Run the tests and return their results, if there are tests and `enabled`. `timeout_ms` limits each test.

    Packages that cannot be installed are a failed result.
    """
    framework = framework_of(bundle) if enabled else None
    if framework is None:
        return []
    folder = await asyncio.to_thread(runs.lend, bundle.files)
    try:
        packages = await _packages(runs, bundle, framework)
        return await _run(runs, Mounted(bundle, folder, packages), framework, timeout_ms)
    except SkilleryError as error:
        return [Result("test", "tests", "failed", f"{error.message}\n{error.hint or ''}".strip())]
    finally:
        await asyncio.to_thread(runs.take_back, folder)


async def _packages(runs: FolderRuns, bundle: Bundle, framework: Framework) -> tuple[PackageMount, ...]:
    required = runs.required_by(bundle.manifest)[1]
    if framework == "pytest":
        return await (await runs.packages()).with_pytest(bundle, required)
    locked = any(locks_of(bundle)) or any(skill.locked for skill in required)
    has_packages = locked or runs.needs_packages(bundle.manifest)
    return await (await runs.packages()).of_bundle(bundle, required) if has_packages else ()


async def _run(runs: FolderRuns, mounted: Mounted, framework: Framework, timeout_ms: int) -> list[Result]:
    """Run the tests until each has a result.

    If a run fails outside of a test, or after MAX_RUNS runs, the remaining tests have no result.
    """
    results: dict[str, Result] = {}
    for _ in range(MAX_RUNS):
        watched = _Watched(timeout_ms / 1000)
        outcome = await watched.outcome(runs, _job(runs, mounted, framework, timeout_ms, list(results)), mounted)
        if outcome is not None and outcome.failure is None:
            for name, status, text, duration_ms in msgspec.json.decode(outcome.result or b"[]"):
                results[name] = Result("test", name, status, text.strip(), duration_ms=duration_ms)
            return list(results.values())
        results |= {name: Result("test", name, status) for name, status in watched.ended.items() if status == "passed"}
        stopped = watched.current or "tests"
        results[stopped] = Result("test", stopped, "failed", _why(outcome, timeout_ms))
        if not watched.current:
            break
    return list(results.values())


class Mounted(NamedTuple):
    """A bundle with its files in a folder of this machine, and its packages."""

    bundle: Bundle
    folder: Path
    packages: tuple[PackageMount, ...]


class _Watched:
    """A run of tests, which is stopped if one test takes too long."""

    def __init__(self, seconds: float) -> None:
        self.ended: dict[str, Status] = {}
        self.current = ""
        self._seconds = seconds
        self._deadline = time.monotonic() + FIRST_SECONDS

    async def outcome(self, runs: FolderRuns, job: Job, mounted: Mounted) -> Outcome | None:
        """Return the outcome of the run, or None if it was stopped because a test took too long."""
        permissions = mounted.bundle.manifest.permissions
        run = asyncio.create_task(runs.run_tests(job, permissions, self._progressed))
        while not run.done():
            seconds_left = self._deadline - time.monotonic()
            if seconds_left <= 0:
                run.cancel()
                await asyncio.wait({run})
                return None
            await asyncio.wait({run}, timeout=seconds_left)
        return run.result()

    def _progressed(self, progress: Progress) -> None:
        status, _, name = progress.text.partition("\t")
        self._deadline = time.monotonic() + self._seconds + GRACE_SECONDS
        self.current = name if status == "started" else ""
        if status in {"passed", "failed", "skipped"}:
            self.ended[name] = status  # type: ignore[assignment]


def _job(runs: FolderRuns, mounted: Mounted, framework: Framework, timeout_ms: int, skip: list[str]) -> Job:
    """Return the run of the tests, without those in `skip`."""
    manifest = mounted.bundle.manifest
    entrypoint = manifest.called.entrypoint if manifest.called else None
    args: dict[str, Any] = {
        "folder": f"/skills/{manifest.name}",
        "module": import_name(manifest.name),
        "entrypoint": entrypoint or "",
        "framework": framework,
        "seconds": timeout_ms / 1000,
        "skip": skip,
    }
    return Job(
        run_id=new_run_id(),
        call=CodeCall(CODE.read_text("utf-8"), "main"),
        args=msgspec.json.encode(args),
        skills=(SkillMount(manifest.name, mounted.folder, entrypoint), *runs.required_by(manifest)[0]),
        limits=runs.limits.for_skill(manifest.runtime.limits if manifest.runtime else {}, None),
        packages=mounted.packages,
    )


def _why(outcome: Outcome | None, timeout_ms: int) -> str:
    if outcome is None or outcome.failure is None:
        return f"the test did not end within {timeout_ms} ms (--timeout-ms), and its run was stopped"
    failure = outcome.failure
    return f"{failure.type}: {failure.message}\n{failure.traceback}".strip()


def _is_test(path: PurePosixPath) -> bool:
    if path.parts[0] != "tests" or path.suffix != ".py":
        return False
    return path.name.startswith("test_") or path.name.endswith("_test.py")


def _uses_pytest(source: bytes) -> bool:
    """Return whether a file imports pytest, or defines tests that unittest does not find."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return False
    return any(name == "pytest" for name in _imported(tree)) or any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_") for node in tree.body
    )


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


# -- `skillery test`: the gate of publishing for a folder, then the folder's own tests. All results are reported -------


async def test_folder(
    runs: FolderRuns, folder: Path, timeout_ms: int, *, update: bool, allow_unknown: bool, own_tests: bool
) -> Report:
    """Return the report about a skill folder. Each problem of the folder is a failed result, and raises no error.

    `timeout_ms` limits each example and each test. `update` writes actual values into skill.toml as expectations. If a
    check refuses the folder, its examples and tests do not run, as when the folder is published. Without `own_tests`,
    only the examples run.
    """
    gate = runs.gate(timeout_ms)
    try:
        skill, skill_md, notes = await asyncio.to_thread(read_folder, folder, allow_unknown)
        bundle, findings = await _checked(runs, gate, skill, skill_md)
    except InvalidParams as error:
        return Report(str(folder), "", "", failed_checks(problems_of(error), error.hint))
    except SkilleryError as error:
        return Report(str(folder), "", "", (_failed(error),))
    except OSError as error:
        return Report(str(folder), "", "", (Result("check", str(folder), "failed", str(error)),))
    results = [_refusal(finding) for finding in findings if finding.refuses]
    if not results:
        results = await _results(runs, gate, folder, bundle, timeout_ms, update, own_tests)
    warnings = (
        *notes,
        *placed(skill, bundle.warnings),
        *lint(skill),
        *(_as_warning(finding) for finding in findings if not finding.refuses),
    )
    name, version = bundle.manifest.name, str(bundle.manifest.version)
    return Report(str(folder), name, version, tuple(results), warnings, search_line(skill))


def read_folder(folder: Path, allow_unknown: bool) -> tuple[SkillFolder, str | SkillMd, list[str]]:
    """Return the skill, its SKILL.md, and notes for the author. A plain Agent Skill is read as an import reads it.

    Raise the errors of `read_skill_folder` and `refuse_misspelt`. Blocking.
    """
    if (folder / SKILL_MD).is_file() and not (folder / SKILL_TOML).exists():
        skill, skill_md, notes = read_plain_folder(folder)
        return (
            skill,
            skill_md,
            [f"a plain Agent Skill without {SKILL_TOML}: `skillery import DIR` publishes it", *notes],
        )
    skill = read_skill_folder(folder)
    if not allow_unknown:
        refuse_misspelt(skill)
    return skill, skill.skill_md, []


async def _checked(
    runs: FolderRuns, gate: Gate, skill: SkillFolder, skill_md: str | SkillMd
) -> tuple[Bundle, tuple[CheckFinding, ...]]:
    bundle = await gate.bundle(AUTHOR.name, skill.manifest, skill_md, skill.files)
    await runs.require(gate, skill)
    bundle, scan = await gate.locked(AUTHOR.name, bundle, skill.files, None, no_stored_lock)
    publication = publication_of(bundle, AUTHOR)
    return bundle, await gate.findings(publication, bundle, scan, AUTHOR, _judge, trials=True)


async def _judge(findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
    return as_found(findings)


async def _results(
    runs: FolderRuns, gate: Gate, folder: Path, bundle: Bundle, timeout_ms: int, update: bool, own_tests: bool
) -> list[Result]:
    """Run the examples, and with `own_tests` the tests. With `update`, write the actual values of failed examples."""
    try:
        bundle_tests = run_tests(runs, bundle, timeout_ms, enabled=own_tests)
        tested, tests = await asyncio.gather(_examples(runs, gate, bundle), bundle_tests)
    except SkilleryError as error:
        return [_failed(error)]
    results = example_results(bundle.examples, tested, timeout_ms)
    if update and any(result.status == "failed" for result in results):
        results = update_expectations(folder / "skill.toml", bundle.examples.read, results, tested.outcomes)
    return [*results, *tests]


async def _examples(runs: FolderRuns, gate: Gate, bundle: Bundle) -> Tested:
    subject = Subject(bundle.manifest, bundle.digest, published_files(bundle.files))
    permitted = runs.allowed.permits(bundle.manifest.permissions)
    return await gate.trials.examples.test(AUTHOR, subject, bundle.examples, permitted=permitted)


def _refusal(finding: CheckFinding) -> Result:
    return Result("check", finding.file or finding.rule, "failed", finding.message, finding.file, finding.line)


def _as_warning(finding: CheckFinding) -> str:
    prefix = f"{finding.file}:{finding.line}: " if finding.line else f"{finding.file}: " if finding.file else ""
    return f"{prefix}{finding.message}"


def _failed(error: SkilleryError) -> Result:
    return Result("check", "bundle", "failed", f"{error.message}\n{error.hint or ''}".strip())
