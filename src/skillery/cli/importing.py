"""`skillery import` and `skillery sync`: POST /import, for folders and archives."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.cli.failing import ANSWERED_ERROR, CHECK_FAILED, AnsweredError, print_error
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.printing import clean, print_json
from skillery.cli.sources import default_source, name_of, shown
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.cli.client import Client
    from skillery.cli.packing import Folder

Told = Callable[[str, Mapping[str, Any]], None]
Params = Callable[[Path], dict[str, str]]
"""The parameters of POST /import for each path."""


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--namespace", metavar="NS", help="Put the skills below this namespace: pdf becomes NS.pdf."),
        click.option(
            "--permissions",
            metavar="FILE",
            type=click.Path(path_type=Path, dir_okay=False),
            help="[permissions] for skills without a skill.toml, as TOML or JSON.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Say what would be published and run the examples; change nothing."
        ),
        click.option(
            "--source",
            metavar="NAME",
            help="Where the skills come from; the registry knows a skill by its source and its path.  [default: the "
            "remote of the repository, otherwise the name of the folder or archive]",
        ),
        click.option(
            "--packages",
            type=click.Choice(["infer", "declared"]),
            help="infer: lock the packages that Python files import and the skill does not declare; declared: do not "
            "look for them.  [default: the server's]",
        ),
        click.option("--watch", is_flag=True, help="Go on: import again whenever something has changed."),
        click.option(
            "--every", default=2.0, show_default=True, metavar="SECONDS", help="With --watch: how often to look."
        ),
    ):
        command = option(command)
    return command


@click.command("import")
@click.argument(
    "paths", metavar="PATH|ARCHIVE...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True)
)
@_shared
@click.option(
    "--take-over",
    "take_over",
    multiple=True,
    metavar="NAME",
    help="Publish the skill that asks for NAME as the next version of NAME, although that belongs to another source. "
    "Repeatable.",
)
@target_options
@json_option
def import_(
    paths: Sequence[Path],
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    source: str | None,
    take_over: Sequence[str],
    packages: str | None,
    watch: bool,
    every: float,
    target: Target,
    as_json: bool,
) -> None:
    """Import the skills in each PATH: a folder with a SKILL.md or many of them, a .zip, .skill, .tar.gz or .tgz.

    What is wrong with a SKILL.md is mended in reading, and said; the bytes are stored as they are. A skill that is
    refused does not keep the others back. What has not changed since the last import is not published again.
    """
    given = {"take_over": ",".join(take_over)} if take_over else {}
    params = _params(namespace, permissions, dry_run, packages) | given
    _run(target, paths, _with_source(params, source, paths), as_json, every if watch else None, dry_run)


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@_shared
@click.option("--prune", is_flag=True, help="Yank what DIR does not hold any more; otherwise it is only said.")
@target_options
@json_option
def sync(
    folders: Sequence[Path],
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    source: str | None,
    packages: str | None,
    watch: bool,
    every: float,
    prune: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Keep the registry in step with each DIR: import what is new or changed, and say what was removed."""
    params = _params(namespace, permissions, dry_run, packages) | ({"prune": "true"} if prune else {})
    told = _with_source(params, source, folders)
    _run(target, folders, told, as_json, every if watch else None, dry_run, in_step=True)


def _params(namespace: str | None, permissions: Path | None, dry_run: bool, packages: str | None) -> dict[str, str]:
    given = {"namespace": namespace or "", "dry_run": "true" if dry_run else "", "packages": packages or ""}
    if permissions is not None:
        given["permissions"] = msgspec.json.encode(_read_permissions(permissions)).decode()
    return {key: value for key, value in given.items() if value}


def _with_source(params: dict[str, str], source: str | None, paths: Sequence[Path]) -> Params:
    """Return the parameters of each path. Raise UsageError if one source is given for several paths."""
    if source and len(paths) > 1:
        raise click.UsageError("--source names the source of one path: import several paths one after the other")

    def told(path: Path) -> dict[str, str]:
        return {**params, **({"source": source} if source else {"default_source": default_source(path)})}

    return told


def _read_permissions(path: Path) -> Any:
    """The table `permissions`, or the whole file where it is that table."""
    try:
        text = path.read_text("utf-8")
        found = msgspec.json.decode(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise click.BadParameter(f"'{path}' is neither TOML nor a JSON object: {error}") from None
    permissions = found.get("permissions", found) if isinstance(found, dict) else found
    if not isinstance(permissions, dict):
        raise click.BadParameter(f"'{path}' holds no table of permissions")
    return permissions


def _run(
    target: Target,
    paths: Sequence[Path],
    params: Params,
    as_json: bool,
    every: float | None,
    dry_run: bool,
    in_step: bool = False,
) -> None:
    """Once; with `every`, again and again whenever something has changed, until it is interrupted."""
    if every is None:
        _exit(_import_all(target, paths, params, as_json, in_step), dry_run)
        return
    from skillery.cli.packing import fingerprint

    seen: list[str] = []
    while True:
        now = [fingerprint(path) if path.is_dir() else str(path.stat().st_mtime_ns) for path in paths]
        if now != seen:
            seen = now
            try:
                _import_all(target, paths, params, as_json, in_step)
            except StartupError as error:
                # The server may be back the next time.
                seen = []
                click.echo(clean(str(error)), err=True)
            sys.stdout.flush()
        time.sleep(max(0.1, every))


def _exit(answers: Sequence[Mapping[str, Any]], dry_run: bool) -> None:
    if any("error" in answer or answer["counts"].get("refused") or answer["stopped"] for answer in answers):
        raise click.exceptions.Exit(CHECK_FAILED if dry_run else ANSWERED_ERROR)


def _import_all(
    target: Target, paths: Sequence[Path], params: Params, as_json: bool, in_step: bool
) -> list[dict[str, Any]]:
    from skillery.cli.connecting import with_client

    async def work(client: Client) -> list[dict[str, Any]]:
        each = zip(paths, _look_through(paths), strict=True)
        return [await _import(client, path, folder, params(path), as_json, in_step) for path, folder in each]

    answers = with_client(target, work)
    if as_json:
        print_json(answers)
    return answers


def _look_through(paths: Sequence[Path]) -> list[Folder | None]:
    """None for archives. Of one name in several folders the later one counts."""
    from skillery.cli.packing import look_through

    folders = [look_through(path) if path.is_dir() else None for path in paths]
    if len(paths) == 1:
        return folders
    from skillery.cli.overriding import override

    return override(folders, [name_of(path) for path in paths])


async def _import(
    client: Client, path: Path, folder: Folder | None, params: dict[str, str], as_json: bool, in_step: bool
) -> dict[str, Any]:
    """What the server said of all of it, `skills` only where they are wanted as JSON."""
    from skillery.cli.overriding import counting, overridden_skills
    from skillery.cli.packing import file_chunks, packed

    overridden = overridden_skills(folder)
    chunks = packed(folder) if folder else file_chunks(path)
    answer: dict[str, Any] = {"path": shown(str(path)), "source": params.get("source") or params["default_source"]}
    skills: list[Mapping[str, Any]] = []
    left_out = _left_out(folder)
    with _progress(as_json) as told:
        try:
            async for key, said in client.import_archive(chunks, name=name_of(path), **params):
                if key == "skill":
                    said = {**said, **left_out(said)}  # noqa: PLW2901
                    told(key, said)
                    if as_json:
                        skills.append(said)
                    continue
                said = counting(said, len(overridden))  # noqa: PLW2901
                told(key, said)
                answer |= said
                for one in overridden if key == "begun" else ():
                    told("skill", one)
                    skills.append(one)
        except AnsweredError as error:
            answer["error"] = error.error
    if folder is not None and "total" in answer:
        outside = msgspec.to_builtins(folder.left_out)
        answer |= {"left_out": outside, "other_files": folder.found.other_files}
    if as_json:
        return {**answer, "skills": skills}
    _print_end(answer, in_step)
    return answer


def _left_out(folder: Folder | None) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What of a skill was left out before it was sent."""

    def look(said: Mapping[str, Any]) -> dict[str, Any]:
        if folder is None or said["path"] not in folder.found.roots:
            return {}
        left_out = msgspec.to_builtins(folder.finder.skill(said["path"]).left_out)
        return {"left_out": left_out} if left_out else {}

    return look


# -- what is printed -------------------------------------------------------------------------------------------------


@contextmanager
def _progress(as_json: bool) -> Any:
    """A line for each skill; on a terminal a bar besides."""
    if as_json or not sys.stderr.isatty():
        yield (lambda key, said: None) if as_json else _print_line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("sending", total=None)

        def told(key: str, said: Mapping[str, Any]) -> None:
            if key == "begun":
                bar.update(task, description="importing", total=said["total"])
            elif key == "skill":
                bar.update(task, advance=1)
                if said["outcome"] != "unchanged":
                    bar.console.file.flush()
                    _print_line(key, said)

        yield told


def _print_line(key: str, said: Mapping[str, Any]) -> None:
    if key != "skill":
        return
    where = said["path"] or "."
    if said["outcome"] == "refused":
        # Findings of a dry run stand beside, those of a refusal in its error.
        error = said.get("error") or {"message": "the checks refuse it", "data": {"findings": said.get("findings")}}
        print_error({**error, "subject": where})
    else:
        name = f"{said.get('name', '')} {said.get('version', '')}".strip()
        by = f" by {said['by'] or '.'}" if "by" in said else ""
        click.echo(clean(f"{said['outcome']}{by}\t{name or said.get('stated', '')}\t{where}"))
    for line in _details(said):
        click.echo(clean(f"  {line}"), err=True)


def _details(said: Mapping[str, Any]) -> list[str]:
    """Each with where it is, for in a log of stderr they stand without the lines of the skills."""
    where = said["path"] or "."
    repairs = said.get("repairs", ()) if said["outcome"] != "unchanged" else ()
    warnings = dict.fromkeys(said.get("warnings", ()))
    lines = []
    for repair in repairs:  # what it does without is among the warnings, too: it is told once, with its place
        same = {repair["message"], f"{_place('', repair).lstrip('/')}: {repair['message']}"} & warnings.keys()
        for warning in same:
            del warnings[warning]
        lines.append(f"{'warning' if same else 'repaired'}: {_place(where, repair)}: {repair['message']}")
    if said["outcome"] != "unchanged":
        lines += [f"left out: {where}/{one['path']}{_files(one)}: {one['message']}" for one in said.get("left_out", ())]
    lines += [f"warning: {where}: {warning}" for warning in warnings]
    return lines + [f"{one['severity']}: {_place(where, one)}: {one['message']}" for one in said.get("findings", ())]


def _place(where: str, one: Mapping[str, Any]) -> str:
    if not one.get("file"):
        return where
    return f"{where}/{one['file']}:{one['line']}" if one.get("line") else f"{where}/{one['file']}"


def _files(one: Mapping[str, Any]) -> str:
    return f" ({one['files']} files)" if one["files"] > 1 else ""


def _print_end(answer: Mapping[str, Any], in_step: bool) -> None:
    if "error" in answer:
        print_error({**answer["error"], "subject": answer["path"]})
        return
    for one in answer["left_out"]:
        click.echo(clean(f"left out: {one['path']}{_files(one)}: {one['message']}"), err=True)
    if answer["other_files"]:
        click.echo(f"left out: {answer['other_files']} more files that belong to no skill", err=True)
    for name in answer["not_taken_over"]:
        click.echo(clean(f"not taken over: {name}: no skill here asks for this name"), err=True)
    if answer["unread"] and in_step:
        click.echo(f"removed skills were not looked for: {answer['unread']} could not be read", err=True)
    for one in answer["removed"] if in_step else ():
        yanked = f"yanked {', '.join(one['yanked'])}" if one["yanked"] else "still there; --prune yanks it"
        click.echo(clean(f"removed\t{one['name']} {one['version']}\t{yanked}"))
    counts = ", ".join(f"{number} {outcome}" for outcome, number in answer["counts"].items())
    more = f"; {answer['repaired']} read with repairs" if answer["repaired"] else ""
    skills = "1 skill" if answer["total"] == 1 else f"{answer['total']} skills"
    click.echo(clean(f"{answer['path']}: {skills}: {counts or 'nothing'}{more}"), err=True)
    if not answer["total"]:
        click.echo(
            "hint: A skill is a folder with a SKILL.md (or a skill.toml); give that folder, or one above it.", err=True
        )
    if answer["counts"].get("draft"):
        click.echo("next: skillery submit NAME@VERSION for each draft, then a reviewer", err=True)
    if answer["stopped"]:
        click.echo("stopped: the server could not go on; the same command goes on where it stopped", err=True)
