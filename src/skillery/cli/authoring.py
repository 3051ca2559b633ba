"""`skillery new`, `schema`, `test` and `dev`: make, test and serve the folder of a skill."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, get_args

import click
import msgspec

from skillery.cli.failures import CHECK_FAILED, signals_interrupt
from skillery.cli.options import (
    Target,
    allow_unknown_option,
    folders_argument,
    json_option,
    target_options,
)
from skillery.cli.output import clean, print_json, show_log

if TYPE_CHECKING:
    from skillery.authoring.folder_runs import Allowed, FolderRuns
    from skillery.authoring.results import Report, Result
    from skillery.authoring.scaffold import Kind
    from skillery.settings.load import Settings


# -- `skillery new` and `skillery schema`: the folder of a new skill, and the schemas of its files ---------------------


@click.command()
@click.argument("name", metavar="FILE", type=click.Choice(["skill.toml", "frontmatter", "tools.json"]))
def schema(name: str) -> None:
    """Print the JSON Schema of a file of a skill.

    The files are skill.toml, the frontmatter of SKILL.md, and tools.json. Editors complete and check files with a
    schema. A server has the schemas at /schemas/FILE.json.
    """
    from skillery.formats.file_schemas import schema_of_file

    print_json(schema_of_file(name))


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--kind",
    type=click.Choice(["action", "instruction", "tools"]),
    help="action: code that runs; instruction: a text to read; tools: functions that agents call by name.  "
    "[default: action; asked for on a terminal]",
)
@click.option("--name", help="The name of the skill.  [default: the name of DIR; asked for on a terminal]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def new(folder: Path, kind: Kind | None, name: str | None, as_json: bool) -> None:
    """Make a skill in DIR, with an example and tests that pass.

    No file is overwritten. On a terminal and without --json, the command asks for a missing kind and name.
    """
    from skillery.authoring.scaffold import FilesExist, make_skill

    if not as_json and _is_interactive():
        kind = kind or _asked_kind()
        name = name or _asked_name(folder)
    kind = kind or "action"
    skill_name = _skill_name(folder, name)
    try:
        paths = make_skill(folder, kind, skill_name)
    except FilesExist as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.UsageError(f"'{folder}' cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"folder": str(folder), "name": skill_name, "kind": kind, "files": paths})
        return
    _print_made(folder, skill_name, paths)


def _is_interactive() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _asked_kind() -> Kind:
    from skillery.authoring.scaffold import Kind

    kinds = click.Choice(get_args(Kind))
    kind: Kind = click.prompt("Kind of the skill", type=kinds, default="action")
    return kind


def _asked_name(folder: Path) -> str:
    name: str = click.prompt("Name of the skill", default=folder.resolve().name)
    return name


def _skill_name(folder: Path, name: str | None) -> str:
    """Return `name`, or else the name for the folder. Raise UsageError with the remedy if it is not valid."""
    from skillery.authoring.scaffold import checked_name, name_for
    from skillery.errors import InvalidName

    try:
        return checked_name(name) if name else name_for(folder)
    except InvalidName as error:
        raise click.UsageError(f"{error.message} {error.hint}") from None


def _print_made(folder: Path, name: str, paths: list[str]) -> None:
    click.echo(f"{name} in {clean(folder)}:")
    for path in paths:
        click.echo(f"  {path}")
    click.echo(clean(f"next: skillery test {folder}, then skillery publish {folder}"), err=True)


# -- `skillery test`: the examples and tests of a folder, without a registry -------------------------------------------


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
@target_options
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

    Nothing is published. Skills that a skill requires are other DIRs, or else come from the registry, which is not
    opened otherwise. The settings choose the sandbox and its limits.
    """
    import asyncio

    from skillery.authoring.folder_runs import Allowed

    settings = target.load().settings
    show_log(settings)
    allowed = Allowed(allow_network, None if secrets is None else _secrets_in(secrets))
    session = _Session(folders, timeout_ms, allowed, update=update, allow_unknown=allow_unknown, as_json=as_json)
    with signals_interrupt():
        is_passed = asyncio.run(session.run(settings, target, watch=watch))
    if not is_passed:
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
        assignment = line.strip().removeprefix("export ").strip()
        if not assignment or assignment.startswith("#"):
            continue
        name, equals, value = assignment.partition("=")
        if not equals:
            raise click.UsageError(f"{file}:{number}: this is not a line NAME=value")
        quoted = value.strip()[:1] in {"'", '"'}
        try:
            values[name.strip()] = " ".join(shlex.split(value)) if quoted else value.strip()
        except ValueError:
            raise click.UsageError(f"{file}:{number}: the quote has no end") from None
    return values


class _Session(NamedTuple):
    """One execution of `skillery test`. All its rounds share one sandbox."""

    folders: Sequence[Path]
    timeout_ms: int
    allowed: Allowed
    update: bool
    allow_unknown: bool
    as_json: bool

    async def run(self, settings: Settings, target: Target, *, watch: bool) -> bool:
        """Test all folders, and return whether everything passed. With `watch`, test changed folders again until
        interrupted.
        """
        from skillery.authoring.development import changes
        from skillery.authoring.folder_host import Finder
        from skillery.authoring.folder_runs import open_runs
        from skillery.cli.connection import connect

        finder = Finder(self.folders, lambda: connect(target))
        async with open_runs(settings, finder, self.allowed) as runs:
            if not watch:
                return await self._round(runs, self.folders)
            async for changed in changes(self.folders):
                await self._round(runs, changed)
                sys.stdout.flush()
        return True

    async def _round(self, runs: FolderRuns, folders: Sequence[Path]) -> bool:
        """Test the folders and print their reports. Return whether everything passed."""
        from skillery.authoring.own_tests import test_folder

        reports = []
        for folder in folders:
            began = time.monotonic()
            options = {"update": self.update, "allow_unknown": self.allow_unknown, "own_tests": True}
            reports.append(await test_folder(runs, folder, self.timeout_ms, **options))
            if not self.as_json:
                print_report(reports[-1], time.monotonic() - began)
        if self.as_json:
            print_json([{**msgspec.to_builtins(report), "ok": report.ok} for report in reports])
        return all(report.ok for report in reports)


def print_report(report: Report, seconds: float) -> None:
    """Print a line for each result with its details below it, the warnings, and the counts with the time."""
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
    """Print one result: its status, its location and its details."""
    location = f"{result.file}:{result.line}: " if result.line else ""
    took = f"  {result.duration_ms:.0f} ms" if result.duration_ms >= 1 else ""
    status = click.style(f"{result.status:7}", fg=COLOURS[result.status])
    name = result.name if result.subject != "check" or not result.file else result.file
    lines = result.message.splitlines()
    first_line = lines[0] if lines else ""
    if result.file and name == result.file:
        first_line = first_line.removeprefix(result.file).lstrip(": ")
    is_diff = first_line.startswith("--- ")
    note = "" if is_diff or not first_line else f": {first_line}"
    click.echo(f"  {status}  {clean(f'{location}{result.subject} {name}{took}{note}')}")
    for line in lines if is_diff else lines[1:]:
        colour = DIFF_COLOURS.get(line[:1]) if is_diff else None
        click.echo(f"           {click.style(clean(line), fg=colour)}")


# -- `skillery dev`: serve folders during development ------------------------------------------------------------------


@click.command(short_help="Serve the skill in each DIR to you alone, and update it after each change.")
@folders_argument
@click.option("--host", metavar="HOST", help="The address to listen on, if no server uses the home.")
@click.option("--port", type=click.IntRange(0, 65535), metavar="PORT", help="0 chooses a free port.")
@target_options
@json_option
def dev(folders: Sequence[Path], host: str | None, port: int | None, target: Target, as_json: bool) -> None:
    """Serve the skill in each DIR to you alone as version X.Y.Z-dev.N, and update it after each change.

    Agents and MCP clients with the same token find the skill by its name at once. Nothing is published, and the
    versions disappear when the command ends. If no server uses the home, the command starts one. With --json, each save
    prints one line of JSON.
    """
    import asyncio

    from skillery.cli.dev_session import serve_folders

    asyncio.run(serve_folders(folders, target, {"host": host, "port": port}, as_json))
