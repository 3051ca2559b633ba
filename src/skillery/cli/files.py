"""Local files and folders in the place of names: `--file` and `--out` of a run, and `skillery run ./greet`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from skillery.cli.failures import run_async, signals_interrupt
from skillery.cli.options import Target, name_and_version
from skillery.cli.output import clean

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.generated import RunFile
    from skillery.publishing.folders import SkillFolder
    from skillery.settings.load import Settings


BLOB_ID = "blob:"


class GivenFile(msgspec.Struct, frozen=True):
    """One `--file`. `source` is a local path or `blob:ID`, `path` is the path in the workspace."""

    source: str
    path: str


def file_options(command: Any) -> Any:
    """Add the options for files: --file, --outputs, --workspace and --out."""
    for option in (
        click.option(
            "--out",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Download the files of the run to this folder.",
        ),
        click.option(
            "--workspace",
            metavar="ID",
            help="Run in this workspace: its files stay from run to run. With a snapshot (sha256:…), nothing is saved.",
        ),
        click.option(
            "--outputs",
            "outputs",
            multiple=True,
            metavar="GLOB",
            help="Also keep these files below /workspace, e.g. 'report/*.pdf'.  [default: those in out/]",
        ),
        click.option(
            "--file",
            "files",
            multiple=True,
            metavar="FILE[:PATH]",
            help="Copy FILE (or a blob, as blob:ID:PATH) to PATH in the run's /workspace.  [default: its name]",
        ),
    ):
        command = option(command)
    return command


def read_files(texts: Sequence[str], option: str = "--file") -> tuple[GivenFile, ...]:
    """Parse the values of `--file`. Raise UsageError if a value names no file, or names a blob without a path.

    `option` is the name of the option in errors.
    """
    return tuple(_given_file(text, option) for text in texts)


def _given_file(text: str, option: str) -> GivenFile:
    """Parse one value. If a file with the whole text as its name exists, the text is not split at a colon."""
    if text.startswith(BLOB_ID):
        blob_id, colon, path = text.removeprefix(BLOB_ID).partition(":")
        if not colon or not path:
            raise click.UsageError(f"{option} '{text}': a blob needs a path: write blob:ID:PATH")
        return GivenFile(BLOB_ID + blob_id, path)
    if Path(text).is_file():
        return GivenFile(text, Path(text).name)
    file, _, path = text.rpartition(":")
    if file and path and Path(file).is_file():
        return GivenFile(file, path)
    for folder in (text, file):
        if folder and Path(folder).is_dir():
            raise click.UsageError(f"{option}: '{folder}' is a folder; name its files")
    raise click.UsageError(f"{option}: the file '{text}' does not exist")


async def upload_files(client: AsyncClient, files: Sequence[GivenFile]) -> list[RunFile] | None:
    """Upload the files. Return the parameter `files` of a run, or None if there are no files."""
    from skillery.cli.blobs import kind_of, upload_file

    run_files: list[RunFile] = []
    for file in files:
        blob_id, is_executable = file.source, False
        if not file.source.startswith(BLOB_ID):
            blob_id = (await upload_file(client, Path(file.source), kind_of(file.path)))["blob_id"]
            is_executable = os.access(file.source, os.X_OK)
        sent: RunFile = {"path": file.path, "blob_id": blob_id}
        run_files.append({**sent, "executable": True} if is_executable else sent)
    return run_files or None


async def download_files(client: AsyncClient, answer: Mapping[str, Any], folder: Path | None) -> None:
    """Write the files of a run below `folder`. Do nothing if `folder` is None.

    A path that leads outside the folder is refused, because the run chose the path.
    """
    from skillery.client.blobs import is_plain, places_below

    if folder is None:
        return
    files = answer.get("files", ())
    for file in files:
        if not is_plain(file["path"]):
            click.echo(
                f"not written: {clean(file['path'])}, {clean(file['blob_id'])}: the path leads outside the folder",
                err=True,
            )
    safe_files = [file for file in files if is_plain(file["path"])]
    for file, place in zip(safe_files, places_below(folder, [file["path"] for file in safe_files]), strict=True):
        await _download(client, file["blob_id"], place)


async def _download(client: AsyncClient, blob_id: str, place: Path) -> None:
    """Write the content of a blob to a file, and create its folders."""
    from skillery.cli.blobs import open_output

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out: cannot make '{place.parent}': {error.strerror}") from None
    async with client.open_blob(blob_id) as blob:
        with open_output(str(place)) as sink:
            async for piece in blob.pieces:
                sink.write(piece)


# -- Folders in place of names: `skillery run ./greet`, `skillery code analysis.py --mount ./greet` --------------------
# A text with a slash is a folder, and so are `.` and `..`. A plain name is always the skill of the registry.


T = TypeVar("T")


def is_folder(text: str) -> bool:
    """Return whether a text names a folder and not a published skill."""
    return "/" in text or text in {".", ".."}


def folders_in(texts: Sequence[str]) -> set[str]:
    """Return the texts that name folders. For each plain name that is also a folder, say on stderr that it is the skill
    of the registry.
    """
    folders = set(filter(is_folder, texts))
    for text in dict.fromkeys(texts):
        if text not in folders and any(Path(text, name).is_file() for name in ("skill.toml", "SKILL.md")):
            click.echo(clean(f"note: '{text}' means the skill of the registry; the folder is ./{text}"), err=True)
    return folders


def reference_of(name: str, version: str | None) -> str:
    """Return the folder, or the reference of a published skill. Raise UsageError for a folder with --version."""
    if version is None:
        return name
    if is_folder(name):
        raise click.UsageError(f"the version of the folder '{name}' is in its skill.toml: leave --version out")
    plain_name, spec = name_and_version(name, version)
    return f"{plain_name}@{spec}"


def with_skills(
    target: Target, skills: Sequence[str], work: Callable[[AsyncClient, list[str]], Coroutine[Any, Any, T]]
) -> T:
    """Call `work` with a client and the references of the skills (NAME@VERSION), and return its result.

    If one of the skills is a folder, the client uses a temporary registry in this process. This registry has the
    folders, copies of the other skills, and the skills that all of them require. Raise UsageError if a skill is a
    folder and --url is given.
    """
    from skillery.authoring.folder_host import Finder
    from skillery.cli.connection import connect, with_client

    folders = folders_in(skills)
    if not folders:
        return with_client(target, lambda client: work(client, list(skills)), sandbox=True)
    if target.origin == "--url":
        raise click.UsageError("a folder runs on this machine: leave --url out, or publish the folder there first")

    async def connected() -> T:
        loaded = await _read(target, skills, folders)
        finder = Finder(loaded, lambda: connect(target))
        required = {str(each.manifest["name"]): each for skill in loaded for each in await finder.find(skill)}
        async with temporary_client(target.load().settings, [*required.values(), *loaded]) as client:
            references = [f"{skill.manifest.get('name')}@{skill.manifest.get('version')}" for skill in loaded]
            return await work(client, references)

    with signals_interrupt():
        return run_async(connected())


async def _read(target: Target, skills: Sequence[str], folders: Set[str]) -> list[SkillFolder]:
    """Return the skills in their order: folders from the disk, others from the registry."""
    from skillery.authoring.folder_host import published_skill
    from skillery.cli.connection import connect
    from skillery.publishing.folders import read_skill_folder

    loaded = {text: read_skill_folder(Path(text)) for text in folders}
    if len(loaded) < len(set(skills)):
        async with connect(target) as client:
            for text in skills:
                if text not in loaded:
                    loaded[text] = await published_skill(client, *name_and_version(text, None))
    return [loaded[text] for text in skills]


@asynccontextmanager
async def temporary_client(settings: Settings, skills: Sequence[SkillFolder]) -> AsyncIterator[AsyncClient]:
    """Context manager: yield a client of a temporary registry in this process, which has the skills."""
    from skillery.app.routes import create_app
    from skillery.authoring.packages import open_temporary_home
    from skillery.cli.connection import BASE_URL, SENT_ONCE, HomeClient, InProcessTransport
    from skillery.cli.output import show_log

    show_log(settings)
    async with open_temporary_home(settings, skills) as (core, edge):
        await core.sandbox.start()
        transport = InProcessTransport(create_app(core, edge, for_browsers=False))
        async with HomeClient(BASE_URL, "", retries=SENT_ONCE, transport=transport) as client:
            yield client
