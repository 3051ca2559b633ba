"""`skillery import` and `skillery sync`: import folders and archives through POST /import."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from skillery.cli.failures import ANSWERED_ERROR, CHECK_FAILED
from skillery.cli.import_uploads import ImportPaths, OptionsOf, default_source, import_all, name_of
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.client import ImportOptions
    from skillery.importing.finder import Nested


NOTHING_FOUND = 4
"""Exit code of an import that finds no skill."""


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that `import` and `sync` share."""
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
            type=click.Choice(["infer", "declared", "newest"]),
            help="infer: also lock packages that scripts import and the skill does not declare; declared: lock "
            "only declared packages; newest: infer, and ignore the dates of commits.  [default: the "
            "server's]",
        ),
        click.option(
            "--nested",
            type=click.Choice(["auto", "keep", "split"]),
            default="auto",
            show_default=True,
            help="A SKILL.md below another skill's folder: keep it as a file of that skill, or split it off. auto: "
            "split if there are three or more, and that skill lists most of them.",
        ),
        click.option(
            "--names",
            metavar="ENCODING",
            help="Encoding of the names in a zip that are not UTF-8, e.g. gb18030, cp932, big5, euc-kr.  [default: the "
            "one in which a SKILL.md mentions a name]",
        ),
        click.option("--keep-bytes", is_flag=True, help="Scripts keep CR LF at the ends of their lines."),
        click.option(
            "--follow-links",
            is_flag=True,
            help="Follow links to skills anywhere on this machine; links in archives are never followed.",
        ),
        click.option("--review", is_flag=True, help="Each new version waits for a review."),
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


@click.command("import", short_help="Import skills from folders and archives.")
@click.argument(
    "paths", metavar="PATH|ARCHIVE...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True)
)
@_shared
@click.option(
    "--take-over",
    "take_over",
    multiple=True,
    metavar="NAME",
    help="Publish the imported skill NAME as the next version of the skill NAME in the registry, although that one "
    "comes from another source. Repeatable.",
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
    packages: Literal["infer", "declared", "newest"] | None,
    nested: Nested,
    names: str | None,
    keep_bytes: bool,
    follow_links: bool,
    review: bool,
    watch: bool,
    every: float,
    target: Target,
    as_json: bool,
) -> None:
    """Import the skills in each PATH: a folder with one or many SKILL.md, a .zip, .skill, .tar.gz,
    .tar.xz or .tar.bz2.

    If a SKILL.md has faults, it is read with repairs, and each repair is reported; the stored file stays unchanged. A
    refused skill does not stop the others. Skills that have not changed since the last import are not published again.
    """
    options = _options(namespace, permissions, dry_run, packages, nested)
    options["names"], options["keep_bytes"] = names or "", keep_bytes
    options["review"] = review
    options["take_over"] = take_over
    options_of = _with_source(options, source, paths)
    sources = ImportPaths(paths, follow_links, is_local=True)
    _run(target, sources, options_of, as_json=as_json, every=every if watch else None, dry_run=dry_run)


@click.command(short_help="Import new and changed skills of a folder.")
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@_shared
@click.option("--prune", is_flag=True, help="Yank skills that DIR no longer contains. [default: only list them]")
@target_options
@json_option
def sync(
    folders: Sequence[Path],
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    source: str | None,
    packages: Literal["infer", "declared", "newest"] | None,
    nested: Nested,
    names: str | None,
    keep_bytes: bool,
    follow_links: bool,
    review: bool,
    watch: bool,
    every: float,
    prune: bool,
    target: Target,
    as_json: bool,
) -> None:
    """Import new and changed skills of each DIR, and list removed skills."""
    options = _options(namespace, permissions, dry_run, packages, nested)
    options["names"], options["keep_bytes"] = names or "", keep_bytes
    options["review"] = review
    options["prune"] = prune
    options_of = _with_source(options, source, folders)
    sources = ImportPaths(folders, follow_links, is_local=True)
    interval = every if watch else None
    _run(target, sources, options_of, as_json=as_json, every=interval, dry_run=dry_run, reports_removed=True)


def _options(
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    packages: Literal["infer", "declared", "newest"] | None,
    nested: Nested,
) -> ImportOptions:
    """Return the options of an import from the values of the command line."""
    options: ImportOptions = {"namespace": namespace or "", "dry_run": dry_run}
    if packages:
        options["packages"] = packages
    if nested != "auto":
        options["nested"] = nested
    if permissions is not None:
        options["permissions"] = _read_permissions(permissions)
    return options


def _with_source(options: ImportOptions, source: str | None, paths: Sequence[Path]) -> OptionsOf:
    """Return a function that returns the options for the import of a path: `options` and the source.

    Raise UsageError if one source is given for several paths.
    """
    if source and len(paths) > 1:
        raise click.UsageError("--source applies to one path only: import several paths one after the other")

    def options_of(path: Path) -> ImportOptions:
        named: ImportOptions = {**options, "name": name_of(path)}
        return {**named, "source": source} if source else {**named, "default_source": default_source(path)}

    return options_of


def _read_permissions(path: Path) -> Any:
    """Return the permissions in a file: the table `permissions`, or the whole file if it has no such table."""
    import tomllib

    try:
        text = path.read_text("utf-8")
        content = msgspec.json.decode(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise StartupError(f"cannot read '{path}': {error.strerror}") from None
    except (ValueError, msgspec.DecodeError) as error:
        raise click.BadParameter(f"'{path}' is neither TOML nor a JSON object: {error}") from None
    permissions = content.get("permissions", content) if isinstance(content, dict) else content
    if not isinstance(permissions, dict):
        raise click.BadParameter(f"'{path}' does not contain a table of permissions")
    return permissions


def _run(
    target: Target,
    sources: ImportPaths,
    options_of: OptionsOf,
    *,
    as_json: bool,
    every: float | None,
    dry_run: bool,
    reports_removed: bool = False,
) -> None:
    """Import once. If `every` is given, check for changes every `every` seconds and import them, until interrupted.

    With `reports_removed`, also print the skills that are no longer in the folders.
    """
    from skillery.client import ConnectionFailed

    if every is None:
        _exit_with_code(import_all(target, sources, options_of, as_json, reports_removed), dry_run)
        return
    former_fingerprints: list[str] = []
    while True:
        fingerprints = sources.fingerprints()
        if fingerprints != former_fingerprints:
            former_fingerprints = fingerprints
            try:
                import_all(target, sources, options_of, as_json, reports_removed)
            except (StartupError, ConnectionFailed) as error:
                # Clearing the fingerprints causes a retry, because the server may be back by then.
                former_fingerprints = []
                click.echo(clean(str(error)), err=True)
            sys.stdout.flush()
        time.sleep(max(0.1, every))


def _exit_with_code(answers: Sequence[Mapping[str, Any]], dry_run: bool) -> None:
    if any("error" in answer or answer["counts"].get("refused") or answer["stopped"] for answer in answers):
        raise click.exceptions.Exit(CHECK_FAILED if dry_run else ANSWERED_ERROR)
    # A synced folder that lost all its skills is not an error: the removed skills are reported.
    if not any(answer["total"] or answer["removed"] for answer in answers):
        raise click.exceptions.Exit(NOTHING_FOUND)
