"""`skillery test`: check a folder, run its examples and its own tests, and report all results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from skillery.authoring.checked_folder import CheckedFolder, check_folder, write_files
from skillery.authoring.examples import Mounted, Tried, run_examples
from skillery.authoring.folder_runs import FolderRuns
from skillery.authoring.own_tests import Framework, framework_of, run_tests
from skillery.authoring.results import Report, Result, failed_checks
from skillery.backends import PackageMount
from skillery.errors import BundleTooLarge, InvalidParams, SkilleryError
from skillery.formats.bundle import Bundle, BundleLimits
from skillery.formats.problems import problems_of

MIB = 1024 * 1024


async def test_folder(runs: FolderRuns, folder: Path, timeout_ms: int, *, update: bool) -> Report:
    """Test the skill in a folder. Each problem is a failed result; no problem of the folder raises.

    `timeout_ms` limits each example and each test. `update` writes actual values into skill.toml as expectations.
    """
    settings = runs.settings
    limits = BundleLimits(max_bytes=settings.bundle_max_mb * MIB, max_files=settings.bundle_max_files)
    try:
        found = await asyncio.to_thread(check_folder, folder, limits)
    except InvalidParams as error:
        return Report(str(folder), "", "", failed_checks(problems_of(error), error.hint))
    except BundleTooLarge as error:
        return Report(str(folder), "", "", (_failed(error),))
    except OSError as error:
        return Report(str(folder), "", "", (Result("check", str(folder), "failed", str(error)),))
    return await _test(runs, folder, found, limits, timeout_ms, update)


async def _test(
    runs: FolderRuns, folder: Path, found: CheckedFolder, limits: BundleLimits, timeout_ms: int, update: bool
) -> Report:
    manifest, framework = found.bundle.manifest, framework_of(found.bundle)
    with TemporaryDirectory(prefix="skillery-") as lent:
        try:
            mounted = await _mounted(runs, found.bundle, Path(lent), limits)
        except SkilleryError as error:
            results = [_failed(error)]
        else:
            tried, tests = await asyncio.gather(
                run_examples(runs, mounted, found.examples, timeout_ms),
                _tests(runs, mounted, framework, timeout_ms),
            )
            results = [*_with_updates(folder, tried, update), *tests]
    return Report(str(folder), manifest.name, str(manifest.version), tuple(results), found.bundle.warnings)


async def _mounted(runs: FolderRuns, bundle: Bundle, folder: Path, limits: BundleLimits) -> Mounted:
    """Return the bundle with its files in a folder, and its packages. Raise SkilleryError."""
    packages: tuple[PackageMount, ...] = ()
    if _needs_packages(runs, bundle):
        bundle, packages = await (await runs.packages()).install(bundle, limits)
    await asyncio.to_thread(write_files, bundle, folder)
    return Mounted(bundle, folder, packages)


def _needs_packages(runs: FolderRuns, bundle: Bundle) -> bool:
    runtime = bundle.manifest.runtime
    declares = runtime is not None and bool(runtime.dependencies or runtime.requires_python)
    return declares or any(one.default for one in runs.settings.environments.values())


async def _tests(runs: FolderRuns, mounted: Mounted, framework: Framework | None, timeout_ms: int) -> list[Result]:
    if framework is None:
        return []
    if framework == "pytest":
        try:
            packages = await (await runs.packages()).with_pytest(mounted.bundle, mounted.packages)
        except SkilleryError as error:
            return [Result("test", "tests", "failed", f"{error.message}\n{error.hint or ''}".strip())]
        mounted = mounted._replace(packages=packages)
    return await run_tests(runs, mounted, framework, timeout_ms)


def _with_updates(folder: Path, tried: list[Tried], update: bool) -> list[Result]:
    """Return the results. With `update`, write the actual values of examples that failed into skill.toml."""
    if not update or all(one.result.status != "failed" for one in tried):
        return [one.result for one in tried]
    from skillery.authoring.updates import update_expectations

    return update_expectations(folder / "skill.toml", tried)


def _failed(error: SkilleryError) -> Result:
    return Result("check", "bundle", "failed", f"{error.message}\n{error.hint or ''}".strip())
