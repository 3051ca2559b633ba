"""`skillery import` and `skillery sync`: import folders and archives through POST /import."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
import msgspec

from skillery.cli.failures import ANSWERED_ERROR, CHECK_FAILED, answered
from skillery.cli.import_report import Sections, print_end, progress
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean, print_json
from skillery.cli.sources import default_source, name_of, printable
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.cli.archives import Folder
    from skillery.client import AsyncClient, ImportOptions

OptionsOf = Callable[[Path], "ImportOptions"]
"""Function that returns the options of the import of a path."""

NOTHING_FOUND = 4
"""Exit code of an import that finds no skill."""


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--namespace", metavar="NS", help="Publish the skills in this namespace: pdf becomes NS.pdf."),
        click.option(
            "--permissions",
            metavar="FILE",
            type=click.Path(path_type=Path, dir_okay=False),
            help="[permissions] for skills without a skill.toml, as TOML or JSON.",
        ),
        click.option(
            "--dry-run", is_flag=True, help="Print what would be published and run the examples; change nothing."
        ),
        click.option(
            "--source",
            metavar="NAME",
            help="The origin of the skills; the registry identifies a skill by its source and path.  [default: the "
            "remote of the repository, otherwise the name of the folder or archive]",
        ),
        click.option(
            "--packages",
            type=click.Choice(["infer", "declared"]),
            help="infer: also lock packages that Python files import and the skill does not declare; declared: lock "
            "only declared packages.  [default: the server's]",
        ),
        click.option(
            "--nested",
            type=click.Choice(["keep", "split"]),
            default="keep",
            show_default=True,
            help="A SKILL.md below another skill's folder: keep it as a file of that skill, or split it off.",
        ),
        click.option(
            "--follow-links",
            is_flag=True,
            help="Follow links to skills anywhere on this machine; links in archives are never followed.",
        ),
        click.option("--watch", is_flag=True, help="Keep running and import again after each change."),
        click.option(
            "--every",
            default=2.0,
            show_default=True,
            metavar="SECONDS",
            help="With --watch: interval between checks for changes.",
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
    help="Publish the skill that asks for NAME as the next version of NAME, although NAME belongs to another source. "
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
    packages: Literal["infer", "declared"] | None,
    nested: Literal["keep", "split"],
    follow_links: bool,
    watch: bool,
    every: float,
    target: Target,
    as_json: bool,
) -> None:
    """Import the skills in each PATH: a folder with one or many SKILL.md, a .zip, .skill, .tar.gz or .tgz.

    Faults in a SKILL.md are repaired while reading, and each repair is reported; the stored bytes stay unchanged. A
    refused skill does not stop the others. Skills that have not changed since the last import are not published again.
    """
    options = _options(namespace, permissions, dry_run, packages, nested)
    options["take_over"] = take_over
    sources = Sources(paths, follow_links)
    _run(target, sources, _with_source(options, source, paths), as_json, every if watch else None, dry_run)


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@_shared
@click.option(
    "--prune", is_flag=True, help="Yank skills that DIR no longer contains. Without it, they are only listed."
)
@target_options
@json_option
def sync(
    folders: Sequence[Path],
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    source: str | None,
    packages: Literal["infer", "declared"] | None,
    nested: Literal["keep", "split"],
    follow_links: bool,
    watch: bool,
    every: float,
    prune: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Import new and changed skills of each DIR, and list removed skills."""
    options = _options(namespace, permissions, dry_run, packages, nested)
    options["prune"] = prune
    options_of = _with_source(options, source, folders)
    sources = Sources(folders, follow_links)
    _run(target, sources, options_of, as_json, every if watch else None, dry_run, in_step=True)


def _options(
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    packages: Literal["infer", "declared"] | None,
    nested: Literal["keep", "split"],
) -> ImportOptions:
    options: ImportOptions = {"namespace": namespace or "", "dry_run": dry_run}
    if packages:
        options["packages"] = packages
    if nested != "keep":
        options["nested"] = nested
    if permissions is not None:
        options["permissions"] = _read_permissions(permissions)
    return options


def _with_source(options: ImportOptions, source: str | None, paths: Sequence[Path]) -> OptionsOf:
    """Return the options of each path. Raise UsageError if one source is given for several paths."""
    if source and len(paths) > 1:
        raise click.UsageError("--source applies to one path only: import several paths one after the other")

    def options_of(path: Path) -> ImportOptions:
        named: ImportOptions = {**options, "name": name_of(path)}
        return {**named, "source": source} if source else {**named, "default_source": default_source(path)}

    return options_of


def _read_permissions(path: Path) -> Any:
    """Read the permissions: the table `permissions`, or the whole file if the file has no such table."""
    import tomllib

    try:
        text = path.read_text("utf-8")
        found = msgspec.json.decode(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise click.BadParameter(f"'{path}' is neither TOML nor a JSON object: {error}") from None
    permissions = found.get("permissions", found) if isinstance(found, dict) else found
    if not isinstance(permissions, dict):
        raise click.BadParameter(f"'{path}' does not contain a table of permissions")
    return permissions


def _run(
    target: Target,
    sources: Sources,
    options_of: OptionsOf,
    as_json: bool,
    every: float | None,
    dry_run: bool,
    in_step: bool = False,
) -> None:
    """Import once. With `every`, import again after each change until interrupted."""
    from skillery.client import ConnectionFailed

    if every is None:
        _exit_with_code(_import_all(target, sources, options_of, as_json, in_step), dry_run)
        return
    seen: list[str] = []
    while True:
        now = sources.fingerprints()
        if now != seen:
            seen = now
            try:
                _import_all(target, sources, options_of, as_json, in_step)
            except (StartupError, ConnectionFailed) as error:
                # Clearing the fingerprints causes a retry, because the server may be back by then.
                seen = []
                click.echo(clean(str(error)), err=True)
            sys.stdout.flush()
        time.sleep(max(0.1, every))


def _exit_with_code(answers: Sequence[Mapping[str, Any]], dry_run: bool) -> None:
    if any("error" in answer or answer["counts"].get("refused") or answer["stopped"] for answer in answers):
        raise click.exceptions.Exit(CHECK_FAILED if dry_run else ANSWERED_ERROR)
    # A synced folder that lost all its skills is not an error: the removed skills are reported.
    if not any(answer["total"] or answer["removed"] for answer in answers):
        raise click.exceptions.Exit(NOTHING_FOUND)


def _import_all(
    target: Target, sources: Sources, options_of: OptionsOf, as_json: bool, in_step: bool
) -> list[dict[str, Any]]:
    from skillery.cli.connection import with_client

    async def work(client: AsyncClient) -> list[dict[str, Any]]:
        split = options_of(sources.paths[0]).get("nested") == "split"
        each = zip(sources.paths, sources.scan_folder(split=split), strict=True)
        return [await _import(client, path, folder, options_of(path), as_json, in_step) for path, folder in each]

    answers = with_client(target, work)
    if as_json:
        print_json(answers)
    return answers


class Sources(NamedTuple):
    """The paths that are imported together."""

    paths: Sequence[Path]
    follow_links: bool

    def scan_folder(self, *, split: bool) -> list[Folder | None]:
        """Scan each folder; an archive gives None. If several folders have a skill of the same name, the last folder
        wins."""
        from skillery.cli.archives import scan_folder
        from skillery.cli.overrides import override

        folders = [
            scan_folder(path, self.paths, anywhere=self.follow_links, split=split) if path.is_dir() else None
            for path in self.paths
        ]
        return folders if len(folders) == 1 else override(folders, [name_of(path) for path in self.paths])

    def fingerprints(self) -> list[str]:
        """Return a fingerprint of each path, which changes when its files change."""
        from skillery.cli.archives import fingerprint

        return [
            fingerprint(path, self.paths, anywhere=self.follow_links) if path.is_dir() else str(path.stat().st_mtime_ns)
            for path in self.paths
        ]


async def _import(
    client: AsyncClient, path: Path, folder: Folder | None, options: ImportOptions, as_json: bool, in_step: bool
) -> dict[str, Any]:
    """Import one path. Return the server's report; `skills` is included only for JSON."""
    from skillery.cli.archives import file_chunks, tar_chunks
    from skillery.cli.overrides import add_overridden, overridden_skills
    from skillery.client import AnsweredError, StrangeAnswer

    not_sent = overridden_skills(folder)
    chunks = tar_chunks(folder) if folder else file_chunks(path)
    answer: dict[str, Any] = {
        "path": printable(str(path)),
        "source": options.get("source") or options["default_source"],
    }
    skills: list[Mapping[str, Any]] = []
    sections = Sections()
    left_out = _left_out(folder)
    with progress(as_json) as told:
        try:
            async for key, event in client.import_archive(chunks, **options):
                full = {**event, **left_out(event)} if key == "skill" else add_overridden(event, not_sent)
                for one in [full, *(not_sent if key == "begun" else ())]:
                    is_skill = key == "skill" or one is not full
                    told("skill" if is_skill else key, one)
                    if is_skill:
                        sections.add(one)
                        skills += [one] if as_json else []
                    else:
                        answer |= one
        except (AnsweredError, StrangeAnswer) as error:
            answer["error"] = answered(error)
    if folder is not None and "total" in answer:
        answer |= {
            "left_out": msgspec.to_builtins(folder.left_out),
            "other_files": folder.found.other_files,
            "searched": [printable(str(path / one)) for one in folder.found.searched],
        }
    sections.end(answer)
    if as_json:
        return {**answer, "sections": sections.listed, "skills": skills}
    print_end(answer, sections, in_step=in_step)
    return answer


def _left_out(folder: Folder | None) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that gives the files of a skill that were omitted before sending."""

    def omitted(event: Mapping[str, Any]) -> dict[str, Any]:
        if folder is None or event["path"] not in folder.found.roots:
            return {}
        left_out = msgspec.to_builtins(folder.finder.skill(event["path"]).left_out)
        return {"left_out": left_out} if left_out else {}

    return omitted
