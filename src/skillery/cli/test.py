"""`skillery test`: the examples and tests of a folder, without a registry."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from skillery.cli.failures import CHECK_FAILED, signals_interrupt
from skillery.cli.options import Target, allow_unknown_option, folders_argument, home_options, json_option
from skillery.cli.output import clean, print_json, show_log

if TYPE_CHECKING:
    from skillery.authoring.folder_runs import Allowed, FolderRuns
    from skillery.authoring.results import Report, Result
    from skillery.settings import Settings

TIMEOUT_MS = 10_000
COLOURS = {"passed": "green", "failed": "red", "skipped": "yellow", "updated": "yellow"}
DIFF_COLOURS = {"+": "green", "-": "red"}


@click.command(short_help="Test the skill in each DIR: check, examples, own tests.")
@folders_argument
@click.option("--update", is_flag=True, help="Write actual outputs into skill.toml as the expected ones.")
@click.option("--watch", is_flag=True, help="Test again after each change, until interrupted.")
@click.option(
    "--timeout-ms",
    type=click.IntRange(1, 3_600_000),
    default=TIMEOUT_MS,
    show_default=True,
    help="Limit of each example and of each test.",
)
@click.option("--allow-network", is_flag=True, help="Let runs connect to the hosts of permissions.network.")
@click.option(
    "--with-secrets-from",
    "secrets",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Give runs the secrets of the skill, from lines NAME=value.",
)
@allow_unknown_option
@home_options
@json_option
def test(
    folders: Sequence[Path],
    update: bool,
    watch: bool,
    timeout_ms: int,
    allow_network: bool,
    secrets: Path | None,
    allow_unknown: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Test the skill in each DIR: the checks of `skillery publish`, its examples and its tests/ in the sandbox.

    Nothing is published and no registry is opened. The settings choose the sandbox and its limits.
    """
    import asyncio

    from skillery.authoring.folder_runs import Allowed

    settings = target.load().settings
    show_log(settings)
    allowed = Allowed(allow_network, None if secrets is None else _secrets_in(secrets))
    session = _Session(folders, timeout_ms, update, allow_unknown, as_json, allowed)
    with signals_interrupt():
        passed = asyncio.run(session.run(settings, watch=watch))
    if not passed:
        raise click.exceptions.Exit(CHECK_FAILED)


def _secrets_in(file: Path) -> dict[str, str]:
    """Return the values of a file with lines NAME=value. Comments, `export` and quotes are as in a shell."""
    import shlex

    values: dict[str, str] = {}
    try:
        lines = file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise click.UsageError(f"{file}: this is not UTF-8 text") from None
    for number, line in enumerate(lines, 1):
        stated = line.strip().removeprefix("export ").strip()
        if not stated or stated.startswith("#"):
            continue
        name, is_value, value = stated.partition("=")
        if not is_value:
            raise click.UsageError(f"{file}:{number}: this is not a line NAME=value")
        quoted = value.strip()[:1] in {"'", '"'}
        try:
            values[name.strip()] = " ".join(shlex.split(value)) if quoted else value.strip()
        except ValueError:
            raise click.UsageError(f"{file}:{number}: the quote has no end") from None
    return values


class _Session:
    """One execution of `skillery test`. All its rounds share one sandbox."""

    def __init__(
        self,
        folders: Sequence[Path],
        timeout_ms: int,
        update: bool,
        allow_unknown: bool,
        as_json: bool,
        allowed: Allowed,
    ) -> None:
        self._allow_unknown = allow_unknown
        self._allowed = allowed
        self._folders = folders
        self._timeout_ms = timeout_ms
        self._update = update
        self._as_json = as_json

    async def run(self, settings: Settings, *, watch: bool) -> bool:
        """Test all folders, and return whether everything passed. With `watch`, test changed folders again until
        interrupted.
        """
        from skillery.authoring.development import changes
        from skillery.authoring.folder_runs import open_runs

        async with open_runs(settings, self._allowed) as runs:
            if not watch:
                return await self._round(runs, self._folders)
            async for changed in changes(self._folders):
                await self._round(runs, changed)
                sys.stdout.flush()
        return True

    async def _round(self, runs: FolderRuns, folders: Sequence[Path]) -> bool:
        from skillery.authoring.testing import test_folder

        reports = []
        for folder in folders:
            began = time.monotonic()
            options = {"update": self._update, "allow_unknown": self._allow_unknown}
            reports.append(await test_folder(runs, folder, self._timeout_ms, **options))
            if not self._as_json:
                print_report(reports[-1], time.monotonic() - began)
        if self._as_json:
            print_json([{**msgspec.to_builtins(report), "ok": report.ok} for report in reports])
        return all(report.ok for report in reports)


def print_report(report: Report, seconds: float) -> None:
    """Print a line for each result with its details below it, the warnings, and the counts."""
    click.echo(click.style(clean(f"{report.name} {report.version}".strip() or report.folder), bold=True))
    for result in report.results:
        _print_result(result)
    if report.search:
        click.echo(f"  search   {clean(report.search)}; publishing prints its rank")
    for warning in report.warnings:
        click.echo(f"  {click.style('warning', fg='yellow')}  {clean(warning)}")
    statuses = [result.status for result in report.results]
    counts = [f"{statuses.count(status)} {status}" for status in COLOURS if status in statuses]
    click.echo(clean(f"{', '.join(counts) or 'no examples and no tests'} in {seconds:.2f} s"))


def _print_result(result: Result) -> None:
    where = f"{result.file}:{result.line}: " if result.line else ""
    took = f"  {result.duration_ms:.0f} ms" if result.duration_ms >= 1 else ""
    status = click.style(f"{result.status:7}", fg=COLOURS[result.status])
    name = result.name if result.subject != "check" or not result.file else result.file
    first = result.message.partition("\n")[0]
    if result.file and name == result.file:
        first = first.removeprefix(result.file).lstrip(": ")
    is_diff = first.startswith("--- ")
    shown = "" if is_diff or not first else f": {first}"
    click.echo(f"  {status}  {clean(f'{where}{result.subject} {name}{took}{shown}')}")
    for line in result.message.splitlines()[0 if is_diff else 1 :]:
        click.echo(f"           {click.style(clean(line), fg=DIFF_COLOURS.get(line[:1] if is_diff else ''))}")
