"""Imports on the command line: send archives and folders to the registry, one after the other."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from skillery.cli.failures import answered
from skillery.cli.import_report import Sections, print_end, progress
from skillery.cli.options import Target
from skillery.cli.output import print_json

if TYPE_CHECKING:
    from skillery.cli.archives import Folder
    from skillery.client import AsyncClient, ImportOptions
    from skillery.importing.finder import Nested


# -- The default source of an import: the remote of the repository, or else the name of the folder or archive ----------


MAX_SOURCE = 200
ARCHIVE_ENDINGS = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar", ".zip", ".skill")
_ORIGIN = re.compile(r'^\s*\[\s*remote\s+"origin"\s*\]\s*$')
_SECTION = re.compile(r"^\s*\[")
_URL = re.compile(r"^\s*url\s*=\s*(?P<url>.*?)\s*$")
_SCP = re.compile(r"(?:[^@/:]+@)?(?P<host>[^/:]+):(?!//)(?P<path>.+)")


def default_source(path: Path) -> str:
    """Return the source of a folder or archive if the user gives none.

    The source is the remote `origin` of the repository and the path of the folder inside the repository:
    `github.com/anthropics/skills/document-skills`. Without a remote, the source is the name of the folder or archive.
    If the parent folder starts with a dot (`.claude/skills`), the source begins with the name of the parent.
    """
    full = path.resolve()
    return _limited_source((_remote_source(full) if full.is_dir() else "") or _source_of_name(full))


def name_of(path: Path) -> str:
    """Return the name of a folder, or of an archive without its extension."""
    name = printable(path.resolve().name)
    ending = next((suffix for suffix in ARCHIVE_ENDINGS if name.lower().endswith(suffix)), "") if path.is_file() else ""
    return name[: len(name) - len(ending)]


def printable(text: str) -> str:
    """Return a file name as valid Unicode. Bytes that are not UTF-8 are replaced."""
    return text.encode("utf-8", "replace").decode()


def normal_remote(url: str) -> str:
    """Return the host and path of a remote, without protocol and user: `github.com/anthropics/skills`.

    Return "" if the remote is a local path or has an unknown protocol.
    """
    scp = _SCP.fullmatch(url)
    if scp is not None:
        host, path = scp["host"], scp["path"]
    else:
        parts = _split(url)
        if parts is None:
            return ""
        host, path = parts
    path = path.strip("/").removesuffix(".git").strip("/")
    return f"{host.lower()}/{path}" if host and path else ""


def _split(url: str) -> tuple[str, str] | None:
    """Return the host with its port, and the path, without credentials. Return None if the URL has no host or an
    unknown scheme.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in {"http", "https", "ssh", "git", "ftp", "ftps", "git+ssh"} or not parts.hostname:
        return None
    return (f"{parts.hostname}:{port}" if port and parts.scheme in {"http", "https"} else parts.hostname), parts.path


def _remote_source(folder: Path) -> str:
    repository = next((ancestor for ancestor in (folder, *folder.parents) if (ancestor / ".git").exists()), None)
    if repository is None:
        return ""
    remote = normal_remote(_origin(_git_folder(repository / ".git")))
    inside = folder.relative_to(repository).as_posix()
    return remote if not remote or inside == "." else f"{remote}/{inside}"


def _git_folder(git: Path) -> Path:
    """Return the git folder that contains the file `config`. `git` is the path of `.git`.

    In a worktree or submodule, `.git` is not the git folder but a file that names the git folder.
    """
    if git.is_dir():
        return git
    git_path = _text(git).strip().removeprefix("gitdir:").strip()
    folder = git.parent / git_path
    common_folder = _text(folder / "commondir").strip()
    return folder / common_folder if common_folder else folder


def _origin(git: Path) -> str:
    """Return the URL of the remote `origin`, or "" if the repository has no such remote."""
    # The file is parsed without git: git may be missing, or refuse a repository of another user.
    is_origin = False
    for line in _text(git / "config").splitlines():
        if _SECTION.match(line):
            is_origin = _ORIGIN.match(line) is not None
        elif is_origin and (match := _URL.match(line)):
            return match["url"].strip('"')
    return ""


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _source_of_name(path: Path) -> str:
    parent = path.parent.name
    prefix = f"{printable(parent)}/" if path.is_dir() and parent.startswith(".") else ""
    return prefix + (name_of(path) or "root")


def _limited_source(source: str) -> str:
    printable_source = "".join(character if character.isprintable() else "?" for character in printable(source))
    if len(printable_source) <= MAX_SOURCE:
        return printable_source
    return f"{printable_source[: MAX_SOURCE - 17]}~{hashlib.sha256(printable_source.encode()).hexdigest()[:16]}"


OptionsOf = Callable[[Path], "ImportOptions"]
"""Function that returns the options for the import of a path."""


def import_all(
    target: Target, sources: ImportPaths, options_of: OptionsOf, as_json: bool, reports_removed: bool
) -> list[dict[str, Any]]:
    """Import all paths with one client, and return their reports. `options_of` returns the options for a path.

    With `reports_removed`, also print the skills that are no longer in the folder.
    """
    from skillery.cli.connection import with_client

    async def work(client: AsyncClient) -> list[dict[str, Any]]:
        nested = options_of(sources.paths[0]).get("nested", "auto")
        paths_and_folders = zip(sources.paths, sources.scan_folder(nested), strict=True)
        return [
            await _import(client, path, folder, options_of(path), as_json, reports_removed)
            for path, folder in paths_and_folders
        ]

    answers = with_client(target, work)
    if as_json:
        print_json(answers)
    return answers


class ImportPaths(NamedTuple):
    """The paths that one command imports."""

    paths: Sequence[Path]
    follow_links: bool
    is_local: bool = False
    """Whether the folders are the user's own ones: then later discovery folders override earlier ones."""

    def scan_folder(self, nested: Nested) -> list[Folder | None]:
        """Return the scanned folder for each path, or None for an archive.

        If several folders have a skill of the same name, the skill of the last folder overrides the others. The
        discovery folders in a local project folder count as folders.
        """
        from skillery.cli.archives import override, scan_folder

        folders = [
            scan_folder(path, self.paths, anywhere=self.follow_links, nested=nested) if path.is_dir() else None
            for path in self.paths
        ]
        return override(folders, [name_of(path) for path in self.paths], discover=self.is_local)

    def fingerprints(self) -> list[str]:
        """Return a text for each path. The text changes if the files at the path change."""
        from skillery.cli.archives import fingerprint

        return [
            fingerprint(path, self.paths, anywhere=self.follow_links) if path.is_dir() else str(path.stat().st_mtime_ns)
            for path in self.paths
        ]


async def _import(
    client: AsyncClient, path: Path, folder: Folder | None, options: ImportOptions, as_json: bool, reports_removed: bool
) -> dict[str, Any]:
    """Import one path and return the report. `folder` is the scanned folder, or None for an archive.

    Without `as_json`, print the report too, and return it without the members `skills` and `sections`.
    """
    from skillery.cli.archives import add_overridden, file_chunks, overridden_skills, tar_chunks
    from skillery.cli.mirror_git import commit_dates, head_commit
    from skillery.client import AnsweredError, StrangeAnswer

    not_sent = overridden_skills(folder)
    dates = commit_dates(folder) if folder else {}
    chunks = tar_chunks(folder, dates) if folder else file_chunks(path)
    if folder and dates:
        options = {**options, "commit_dates": True, "commit": head_commit(folder)}
    answer: dict[str, Any] = {
        "path": printable(str(path)),
        "source": options.get("source") or options["default_source"],
    }
    skills: list[Mapping[str, Any]] = []
    sections = Sections()
    left_out = _left_out(folder)
    with progress(as_json) as message:

        def add(skill: Mapping[str, Any]) -> None:
            message("skill", skill)
            sections.add(skill)
            if as_json:
                skills.append(skill)

        try:
            async for key, event in client.import_archive(chunks, **options):
                if key == "skill":
                    add({**event, **left_out(event)})
                    continue
                report = add_overridden(event, not_sent)
                message(key, report)
                answer |= report
                for skill in not_sent if key == "begun" else ():
                    add(skill)
        except (AnsweredError, StrangeAnswer) as error:
            answer["error"] = answered(error)
    if folder is not None and "total" in answer:
        answer |= {
            "left_out": msgspec.to_builtins(folder.left_out),
            "other_files": folder.scan.other_files,
            "searched": [printable(str(path / subfolder)) for subfolder in folder.scan.searched],
        }
    sections.end(answer)
    if as_json:
        return {**answer, "sections": sections.listed, "skills": skills}
    print_end(answer, sections, reports_removed=reports_removed)
    return answer


def _left_out(folder: Folder | None) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that takes the report of a skill, and returns the files of the skill's folder that were not
    sent.
    """

    def omitted(event: Mapping[str, Any]) -> dict[str, Any]:
        if folder is None or event["path"] not in folder.scan.roots:
            return {}
        left_out = msgspec.to_builtins(folder.finder.skill(event["path"]).left_out)
        return {"left_out": left_out} if left_out else {}

    return omitted
