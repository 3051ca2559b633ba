"""`skillery test`: the gate of publishing for a folder, then the folder's own tests. All results are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from skillery.authoring.folder_runs import AUTHOR, FolderRuns
from skillery.authoring.lint import lint, placed, search_line
from skillery.authoring.own_tests import run_tests
from skillery.authoring.results import Report, Result, example_results, failed_checks
from skillery.backends import Finding
from skillery.errors import InvalidParams, SkilleryError
from skillery.formats.bundle import SKILL_MD, SKILL_TOML, Bundle
from skillery.formats.check_results import CheckFinding
from skillery.formats.problems import problems_of
from skillery.formats.semver import Version
from skillery.formats.skill_md import SkillMd
from skillery.publishing.example_runs import Subject, Tested
from skillery.publishing.folders import SkillFolder, read_plain_folder, read_skill_folder, refuse_misspelt
from skillery.publishing.gate import Gate, as_found, publication_of, published_files


async def test_folder(runs: FolderRuns, folder: Path, timeout_ms: int, *, update: bool, allow_unknown: bool) -> Report:
    """Test the skill in a folder. Each problem is a failed result; no problem of the folder raises.

    `timeout_ms` limits each example and each test. `update` writes actual values into skill.toml as expectations. If a
    check refuses the folder, its examples and tests do not run, as when the folder is published.
    """
    gate = runs.gate(timeout_ms)
    try:
        skill, skill_md, notes = await asyncio.to_thread(_read, folder, allow_unknown)
        bundle, findings = await _checked(gate, skill, skill_md)
    except InvalidParams as error:
        return Report(str(folder), "", "", failed_checks(problems_of(error), error.hint))
    except SkilleryError as error:
        return Report(str(folder), "", "", (_failed(error),))
    except OSError as error:
        return Report(str(folder), "", "", (Result("check", str(folder), "failed", str(error)),))
    results = [_refusal(finding) for finding in findings if finding.refuses]
    if not results:
        results = await _results(runs, gate, folder, bundle, timeout_ms, update)
    warnings = (
        *notes,
        *placed(skill, bundle.warnings),
        *lint(skill),
        *(_as_warning(finding) for finding in findings if not finding.refuses),
    )
    name, version = bundle.manifest.name, str(bundle.manifest.version)
    return Report(str(folder), name, version, tuple(results), warnings, search_line(skill))


def _read(folder: Path, allow_unknown: bool) -> tuple[SkillFolder, str | SkillMd, list[str]]:
    """Return the skill, its SKILL.md, and notes for the author. A plain Agent Skill is read as an import reads it."""
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


async def _checked(gate: Gate, skill: SkillFolder, skill_md: str | SkillMd) -> tuple[Bundle, tuple[CheckFinding, ...]]:
    bundle = await gate.bundle(AUTHOR.name, skill.manifest, skill_md, skill.files)
    bundle, scan = await gate.locked(AUTHOR.name, bundle, skill.files, None, _kept)
    publication = publication_of(bundle, AUTHOR)
    return bundle, await gate.findings(publication, bundle, scan, AUTHOR, _judge, trials=True)


async def _kept(name: str, version: Version) -> tuple[str, bytes | None]:
    return "", None


async def _judge(findings: Sequence[Finding]) -> tuple[CheckFinding, ...]:
    return as_found(findings)


async def _results(
    runs: FolderRuns, gate: Gate, folder: Path, bundle: Bundle, timeout_ms: int, update: bool
) -> list[Result]:
    """Run the examples and the tests. With `update`, write the actual values of examples that failed."""
    try:
        tested, tests = await asyncio.gather(_examples(runs, gate, bundle), run_tests(runs, bundle, timeout_ms))
    except SkilleryError as error:
        return [_failed(error)]
    results = example_results(bundle.examples, tested, timeout_ms)
    if update and any(result.status == "failed" for result in results):
        from skillery.authoring.updates import update_expectations

        results = update_expectations(folder / "skill.toml", bundle.examples.read, results, tested.outcomes)
    return [*results, *tests]


async def _examples(runs: FolderRuns, gate: Gate, bundle: Bundle) -> Tested:
    subject = Subject(bundle.manifest, bundle.digest, published_files(bundle.files))
    permitted = runs.allowed.permits(bundle.manifest.permissions)
    return await gate.trials.examples.test(AUTHOR, subject, bundle.examples, permitted=permitted)


def _refusal(finding: CheckFinding) -> Result:
    return Result("check", finding.file or finding.rule, "failed", finding.message, finding.file, finding.line)


def _as_warning(finding: CheckFinding) -> str:
    place = f"{finding.file}:{finding.line}: " if finding.line else f"{finding.file}: " if finding.file else ""
    return f"{place}{finding.message}"


def _failed(error: SkilleryError) -> Result:
    return Result("check", "bundle", "failed", f"{error.message}\n{error.hint or ''}".strip())
