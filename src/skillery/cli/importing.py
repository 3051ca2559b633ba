"""`skillery import` and `skillery sync`: POST /import, for folders and archives."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from skillery.cli.failing import ANSWERED_ERROR, CHECK_FAILED, AnsweredError
from skillery.cli.import_report import Sections, print_end, progress
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.printing import clean, print_json
from skillery.errors import StartupError

if TYPE_CHECKING:
    from skillery.cli.client import Client
    from skillery.cli.packing import Folder

_ARCHIVE_ENDINGS = (".tar.gz", ".tgz", ".tar", ".zip", ".skill")


NOTHING_FOUND = 4
"""Exit code of an import that finds no skill."""


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
            "--nested",
            type=click.Choice(["keep", "split"]),
            default="keep",
            show_default=True,
            help="A SKILL.md below another skill's folder: a file of that skill, or a skill of its own.",
        ),
        click.option(
            "--follow-links", is_flag=True, help="Follow links to skills anywhere on this machine; archives never do."
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
@target_options
@json_option
def import_(
    paths: Sequence[Path],
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    nested: str,
    follow_links: bool,
    watch: bool,
    every: float,
    target: Target,
    as_json: bool,
) -> None:
    """Import the skills in each PATH: a folder with a SKILL.md or many of them, a .zip, .skill, .tar.gz or .tgz.

    What is wrong with a SKILL.md is mended in reading, and said; the bytes are stored as they are. A skill that is
    refused does not keep the others back. What has not changed since the last import is not published again.
    """
    params = _params(namespace, permissions, dry_run, nested)
    _run(target, Sources(paths, follow_links), lambda _: params, as_json, every if watch else None, dry_run)


@click.command()
@click.argument(
    "folders", metavar="DIR...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@_shared
@click.option("--prune", is_flag=True, help="Yank what DIR does not hold any more; otherwise it is only said.")
@click.option(
    "--source", metavar="LABEL", help="How the registry calls DIR.  [default: its name and a digest of its path]"
)
@target_options
@json_option
def sync(
    folders: Sequence[Path],
    namespace: str | None,
    permissions: Path | None,
    dry_run: bool,
    nested: str,
    follow_links: bool,
    watch: bool,
    every: float,
    prune: bool,
    source: str | None,
    target: Target,
    as_json: bool,
) -> None:
    """Keep the registry in step with each DIR: import what is new or changed, and say what was removed."""
    if source and len(folders) > 1:
        raise click.UsageError("--source names one DIR: sync them one after the other")
    params = _params(namespace, permissions, dry_run, nested) | ({"prune": "true"} if prune else {})
    _run(
        target,
        Sources(folders, follow_links),
        lambda folder: {**params, "source": source or label_of(folder)},
        as_json,
        every if watch else None,
        dry_run,
    )


def shown(text: str) -> str:
    """As any client can read it: a name of a file may be no text."""
    return text.encode("utf-8", "replace").decode()


def label_of(folder: Path) -> str:
    """The same for the same folder of the same machine, and no path that others would see."""
    path = os.path.realpath(folder)
    digest = hashlib.sha256(os.fsencode(f"{platform.node()}:{path}")).hexdigest()[:8]
    return f"{shown(Path(path).name)[:100] or 'root'}-{digest}"


def _params(namespace: str | None, permissions: Path | None, dry_run: bool, nested: str) -> dict[str, str]:
    given = {
        "namespace": namespace or "",
        "dry_run": "true" if dry_run else "",
        "nested": nested if nested != "keep" else "",
    }
    if permissions is not None:
        given["permissions"] = msgspec.json.encode(_read_permissions(permissions)).decode()
    return {key: value for key, value in given.items() if value}


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
    sources: Sources,
    params: Callable[[Path], dict[str, str]],
    as_json: bool,
    every: float | None,
    dry_run: bool,
) -> None:
    """Once; with `every`, again and again whenever something has changed, until it is interrupted."""
    if every is None:
        _exit(_import_all(target, sources, params, as_json), dry_run)
        return
    seen: list[str] = []
    while True:
        now = sources.fingerprints()
        if now != seen:
            seen = now
            try:
                _import_all(target, sources, params, as_json)
            except StartupError as error:
                # The server may be back the next time.
                seen = []
                click.echo(clean(str(error)), err=True)
            sys.stdout.flush()
        time.sleep(max(0.1, every))


def _exit(answers: Sequence[Mapping[str, Any]], dry_run: bool) -> None:
    if any("error" in answer or answer["counts"].get("refused") or answer["stopped"] for answer in answers):
        raise click.exceptions.Exit(CHECK_FAILED if dry_run else ANSWERED_ERROR)
    # A folder in step may have lost all its skills, and then says so.
    if not any(answer["total"] or answer["removed"] for answer in answers):
        raise click.exceptions.Exit(NOTHING_FOUND)


def _import_all(
    target: Target, sources: Sources, params: Callable[[Path], dict[str, str]], as_json: bool
) -> list[dict[str, Any]]:
    from skillery.cli.connecting import with_client

    async def work(client: Client) -> list[dict[str, Any]]:
        # A folder in step takes over what overrides, before one that had it is asked what is gone.
        step = -1 if "source" in params(sources.paths[0]) else 1
        split = params(sources.paths[0]).get("nested") == "split"
        order = list(zip(sources.paths, sources.look_through(split=split), strict=True))[::step]
        return [await _import(client, path, folder, params(path), as_json) for path, folder in order][::step]

    answers = with_client(target, work)
    if as_json:
        print_json(answers)
    return answers


class Sources(NamedTuple):
    """What is imported together."""

    paths: Sequence[Path]
    follow_links: bool

    def look_through(self, *, split: bool) -> list[Folder | None]:
        """None for archives. Of one name in several folders the later one counts."""
        from skillery.cli.overriding import override
        from skillery.cli.packing import look_through

        folders = [
            look_through(path, self.paths, anywhere=self.follow_links, split=split) if path.is_dir() else None
            for path in self.paths
        ]
        return folders if len(folders) == 1 else override(folders, [_name_of(path) for path in self.paths])

    def fingerprints(self) -> list[str]:
        """Return other texts when something has changed."""
        from skillery.cli.packing import fingerprint

        return [
            fingerprint(path, self.paths, anywhere=self.follow_links) if path.is_dir() else str(path.stat().st_mtime_ns)
            for path in self.paths
        ]


async def _import(
    client: Client, path: Path, folder: Folder | None, params: dict[str, str], as_json: bool
) -> dict[str, Any]:
    """Return what the server said of all of it, `skills` only as JSON."""
    from skillery.cli.overriding import counting, overridden_skills
    from skillery.cli.packing import file_chunks, packed

    not_sent = overridden_skills(folder)
    chunks = packed(folder) if folder else file_chunks(path)
    answer: dict[str, Any] = {"path": shown(str(path))} | ({"source": params["source"]} if "source" in params else {})
    skills: list[Mapping[str, Any]] = []
    sections = Sections()
    left_out = _left_out(folder)
    with progress(as_json) as told:
        try:
            async for key, said in client.import_archive(chunks, name=_name_of(path), **params):
                said = {**said, **left_out(said)} if key == "skill" else counting(said, not_sent)  # noqa: PLW2901
                for one in [said, *(not_sent if key == "begun" else ())]:
                    is_skill = key == "skill" or one is not said
                    told("skill" if is_skill else key, one)
                    if is_skill:
                        sections.add(one)
                        skills += [one] if as_json else []
                    else:
                        answer |= one
        except AnsweredError as error:
            answer["error"] = error.error
    if folder is not None and "total" in answer:
        answer |= {
            "left_out": msgspec.to_builtins(folder.left_out),
            "other_files": folder.found.other_files,
            "searched": [shown(str(path / one)) for one in folder.found.searched],
        }
    sections.end(answer)
    if as_json:
        return {**answer, "sections": sections.listed, "skills": skills}
    print_end(answer, sections)
    return answer


def _left_out(folder: Folder | None) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """What of a skill was left out before it was sent."""

    def look(said: Mapping[str, Any]) -> dict[str, Any]:
        if folder is None or said["path"] not in folder.found.roots:
            return {}
        left_out = msgspec.to_builtins(folder.finder.skill(said["path"]).left_out)
        return {"left_out": left_out} if left_out else {}

    return look


def _name_of(path: Path) -> str:
    name = shown(path.resolve().name)
    ending = next((one for one in _ARCHIVE_ENDINGS if name.lower().endswith(one)), "") if path.is_file() else ""
    return name[: len(name) - len(ending)]
