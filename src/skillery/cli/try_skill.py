"""`skillery try`: import a skill into a temporary registry, show what it contains and may do, and run a part of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from skillery.cli.failures import CHECK_FAILED, RUN_FAILED, signals_interrupt
from skillery.cli.files import GivenFile, read_files, upload_files
from skillery.cli.options import Target, home_options, json_option, without_user
from skillery.cli.output import as_json as as_json_text
from skillery.cli.output import clean, print_fields, print_json
from skillery.cli.search import packages_in
from skillery.formats.wording import first_names

if TYPE_CHECKING:
    from skillery.cli.archives import Folder
    from skillery.client import AsyncClient
    from skillery.settings.load import Settings

MOST_NAMES, MOST_LINES, MOST_CHARACTERS, TIMEOUT_MS = 20, 12, 1200, 60_000
_REMOTE = re.compile(r"(?:https?://|ssh://|[\w.-]+@[\w.-]+:).+")
_FRONTMATTER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
_LAST = ("tests/", "test_", "__init__", "_")
"""Beginnings of paths and names of scripts that are tried only if there is no other one."""


class _ScriptCall(NamedTuple):
    """The script that the user names, its arguments, and the files for its workspace."""

    script: str | None
    argv: Sequence[str]
    files: Sequence[GivenFile]


class Tried(NamedTuple):
    """The result of a trial: the facts about the skill, its import report, and the run, or None."""

    facts: dict[str, object]
    report: Mapping[str, Any]
    run: Mapping[str, Any] | None


@click.command("try", short_help="Try a foreign skill, and leave nothing behind.")
@click.argument("source", metavar="PATH|GIT-URL")
@click.option("--skill", metavar="NAME", help="The skill to try if there are several.  [default: the first one]")
@click.option("--script", metavar="PATH", help="The script to run.  [default: the first one, with --help]")
@click.option(
    "--file", "files", multiple=True, metavar="FILE[:PATH]", help="Copy FILE to PATH in the script's /workspace."
)
@click.argument("argv", metavar="[-- ARGV…]", nargs=-1)
@home_options
@json_option
def try_(
    source: str,
    skill: str | None,
    script: str | None,
    files: Sequence[str],
    argv: Sequence[str],
    target: Target,
    as_json: bool,
) -> None:
    """Show what a foreign skill contains and may do, and run an example or a script of it in the sandbox.

    The skill is imported into a temporary registry, which is deleted at the end. The run reaches no network and gets no
    secrets. Without examples and scripts, the first lines of SKILL.md are printed. The settings choose the sandbox.
    """
    import asyncio

    from skillery.cli.mirror import checked_source
    from skillery.cli.mirror_git import copy_repository

    if (excess := argv or files) and script is None:
        raise click.UsageError(f"'{excess[0]}' requires --script PATH")
    script_call = _ScriptCall(script, argv, read_files(files))
    with signals_interrupt(), TemporaryDirectory(prefix="skillery-try-") as temporary:
        folder, own_name = Path(source), Path(source).resolve().name
        if _REMOTE.fullmatch(source):
            folder = Path(temporary, "tree")
            own_name = re.split("[/:]", source.rstrip("/").removesuffix(".git"))[-1]
            copy_repository(checked_source(source), folder, "")
        elif not folder.is_dir():
            shown_source = without_user(source)
            raise click.UsageError(f"'{shown_source}' is neither a folder nor the https address of a git repository")
        elif (folder / "HEAD").is_file() and (folder / "objects").is_dir():
            raise click.UsageError(
                f"'{own_name}' is a git repository without files: clone it with `git clone {shlex.quote(source)} DIR`, "
                "and try DIR"
            )
        chosen, names = _choose(folder, own_name, skill)
        trial = asyncio.run(_try(target.load().settings, chosen, own_name, script_call))
    facts = {**({"skills": _names(names)} if len(names) > 1 else {}), **trial.facts}
    if as_json:
        print_json({**facts, "report": trial.report, "run": trial.run})
    else:
        _print(facts, trial)
    if trial.report["outcome"] == "refused":
        raise click.exceptions.Exit(CHECK_FAILED)
    if trial.run is not None and not _is_successful(trial.run):
        raise click.exceptions.Exit(RUN_FAILED)


def _choose(path: Path, own_name: str, name: str | None) -> tuple[Folder, list[str]]:
    """Return the folder with only the skill `name`, or the first by name without one, and the names of all skills.

    A skill has the name of its folder here, and a skill at the root has `own_name`. Raise UsageError if the folder does
    not have the skill.
    """
    from skillery.cli.archives import scan_folder
    from skillery.cli.import_uploads import printable

    folder = scan_folder(path)
    names = {printable(root.rpartition("/")[2] or own_name): root for root in reversed(folder.scan.roots)}
    sorted_names = sorted(names)
    if not names:
        raise click.UsageError(f"'{own_name}' has no skill: no folder in it has a SKILL.md")
    if name is not None and name not in names:
        raise click.UsageError(f"'{own_name}' has no skill '{name}', only {_names(sorted_names)}")
    root = names[name or sorted_names[0]]
    return folder._replace(scan=folder.scan._replace(roots=[root])), sorted_names


def _names(names: Sequence[str]) -> str:
    return f"{len(names)}: {first_names(names, MOST_NAMES)} (--skill NAME chooses one)"


async def _try(settings: Settings, folder: Folder, own_name: str, script_call: _ScriptCall) -> Tried:
    """Import the skill into a temporary registry, and run a part of it.

    The version waits for a review, so that its runs and examples get no permissions.
    """
    import msgspec

    from skillery.cli.archives import tar_chunks
    from skillery.cli.files import temporary_client
    from skillery.client import AnsweredError
    from skillery.settings.versions import Publishing

    [located] = folder.skills()
    # No environments of the settings: they are stored in the home of the user.
    isolated = msgspec.structs.replace(settings, environments={}, publishing=Publishing())
    async with temporary_client(isolated, []) as client:
        report: Mapping[str, Any] = {}
        options: Any = {"source": "try", "name": Path(located.root).name or own_name, "review": True, "nested": "keep"}
        async for key, event in client.import_archive(tar_chunks(folder), **options):
            if key == "skill":
                report = event
        if report["outcome"] == "refused":
            return Tried({"skill": report.get("name") or report.get("stated") or own_name}, report, None)
        exact = {"name": report["name"], "version": report["version"]}
        described: Any = (await client.describe_skill(**exact, detail="full"))["skill"]
        facts = dict(_facts(described, report, await _tools(client, described)))
        trial = Tried(facts, report, None)
        try:
            return await _run(client, trial, described, script_call)
        except AnsweredError as error:
            if script_call.script is not None:
                raise
            facts["not run"] = error.message
            return trial


async def _tools(client: AsyncClient, skill: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools in tools.json."""
    from skillery.formats.tools import FILE, read_tools

    paths = {file["path"] for file in skill["files"]}
    if FILE not in paths:
        return []
    answer: Any = await client.read_skill_file(name=skill["name"], version=skill["version"], path=FILE)
    return [tool.name for tool in read_tools(answer["content"].encode(), paths).tools]


def _facts(skill: Mapping[str, Any], report: Mapping[str, Any], tools: Sequence[str]) -> Iterator[tuple[str, object]]:
    """Yield the label and value of each fact: the contents of the skill and its permissions."""
    from skillery.formats.media_types import is_source

    manifest, front = skill["manifest"], skill.get("skill_md_frontmatter") or {}
    paths = [file["path"] for file in skill["files"]]
    code = sum(map(is_source, paths))
    yield "skill", f"{skill['name']} {skill['version']}"
    yield "description", " ".join(str(manifest.get("description", "")).split())
    if front.get("license"):
        yield "license", str(front["license"])
    files = f"{report['files']} file{'s' * (report['files'] != 1)}"
    yield "contains", f"{files}, {code} of them code, {max(1, report['size_bytes'] // 1000)} kB"
    if tools:
        yield "tools", ", ".join(tools)
    lock = skill.get("lock") or {}
    for label, part in (("packages", lock), ("npm packages", lock.get("npm", {}))):
        if part.get("packages"):
            yield label, packages_in(part)
    permissions = manifest.get("permissions") or {}
    for key in ("network", "secrets"):
        values = permissions.get(key)
        yield key, f"{', '.join(values)} (not in this trial)" if values else "none"
    if examples := report.get("examples"):
        statuses = [example["status"] for example in examples]
        words = {"passed": "passed", "failed": "failed", "not_run": "not run", "waiting": "need permissions"}
        yield (
            "examples",
            ", ".join(f"{statuses.count(status)} {word}" for status, word in words.items() if status in statuses),
        )


async def _run(client: AsyncClient, trial: Tried, skill: Mapping[str, Any], script_call: _ScriptCall) -> Tried:
    """Return the trial with the run of an example, else of the chosen script, else of the entrypoint. If there are
    none, add the first lines of SKILL.md to the facts.
    """
    facts, exact = trial.facts, {"name": skill["name"], "version": skill["version"]}
    manifest, script = skill["manifest"], script_call.script
    has_entrypoint = bool((manifest.get("runtime") or {}).get("entrypoint"))
    example = next((candidate for candidate in trial.report.get("examples", ()) if candidate.get("run_id")), None)
    if script is None and example is not None:
        facts["example"] = example["name"]
        return trial._replace(run=await client.get_run(run_id=example["run_id"]))
    if script is None and has_entrypoint:
        if required_inputs := [name for name, field in (manifest.get("inputs") or {}).items() if field.get("required")]:
            facts["not run"] = f"it needs the inputs {', '.join(required_inputs)}, and has no example"
            return trial
        return trial._replace(run=await client.execute_skill(**exact, timeout_ms=TIMEOUT_MS))
    chosen = script or _first_script([file["path"] for file in skill["files"]])
    if chosen is None:
        facts["SKILL.md"] = _short(_FRONTMATTER.sub("", skill["skill_md"]).strip())
        return trial
    words = list(script_call.argv) if script else ["--help"]
    facts["script"] = " ".join([chosen, *words])
    files = await upload_files(client, script_call.files)
    run = await client.execute_skill(**exact, script=chosen, args={"argv": words}, files=files, timeout_ms=TIMEOUT_MS)
    return trial._replace(run=run)


def _first_script(paths: Sequence[str]) -> str | None:
    from skillery.formats.media_types import is_source

    def last(path: str) -> tuple[bool, bool, str]:
        name = path.rpartition("/")[2]
        return any(text.startswith(_LAST) for text in (path, name)), not path.startswith("scripts/"), path

    return min(filter(is_source, paths), key=last, default=None)


def _is_successful(run: Mapping[str, Any]) -> bool:
    """Return whether the run completed and, if it ran a script, whether the exit code is 0."""
    output = run["output"]
    return run["status"] == "completed" and not (isinstance(output, dict) and output.get("exit_code"))


def _print(facts: Mapping[str, object], trial: Tried) -> None:
    """Print the facts and the run. Print the details of the import and the end of the trial to stderr."""
    from skillery.cli.failures import print_error
    from skillery.cli.import_report import details

    if trial.report["outcome"] == "refused":
        findings = {"findings": trial.report.get("findings")}
        error = trial.report.get("error") or {"message": "the checks refuse it", "data": findings}
        print_error({**error, "subject": facts["skill"]})
        return
    print_fields([*facts.items(), *(_run_fields(trial.run, is_script="script" in facts) if trial.run else ())])
    for line in details(trial.report):
        click.echo(clean(line), err=True)
    click.echo("deleted: the copy of the skill and the temporary registry", err=True)


def _run_fields(run: Mapping[str, Any], *, is_script: bool) -> Iterator[tuple[str, object]]:
    output, took = run["output"], f"in {run['duration_ms']:.0f} ms"
    if run["status"] != "completed":
        yield "failed", f"{run['error']['type']}: {run['error']['message']}"
    elif is_script:
        yield "exit code", f"{output['exit_code']} {took}"
        yield from ((name, _short(output[name])) for name in ("stdout", "stderr", "hint") if output.get(name))
    else:
        yield "completed", took
        yield "output", _short(as_json_text(output, -1))


def _short(text: str) -> str:
    """Return the first `MOST_LINES` lines of a text, at most `MOST_CHARACTERS` characters, with "…" if it is longer."""
    lines = text.splitlines()
    short = "\n".join(lines[:MOST_LINES])[:MOST_CHARACTERS]
    return short if len(short) == len("\n".join(lines)) else f"{short} …"
