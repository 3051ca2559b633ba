"""`--file` and `--out`: copy local files into the workspace of a run, and files of a run to a local folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from skillery.cli.output import clean

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.generated import RunFile

BLOB_ID = "blob:"


class GivenFile(msgspec.Struct, frozen=True):
    """One `--file`. `source` is a local path or `blob:ID`, `path` is the path in the workspace."""

    source: str
    path: str


def file_options(command: Any) -> Any:
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

    made: list[RunFile] = []
    for file in files:
        blob_id, is_executable = file.source, False
        if not file.source.startswith(BLOB_ID):
            blob_id = (await upload_file(client, Path(file.source), kind_of(file.path)))["blob_id"]
            is_executable = os.access(file.source, os.X_OK)
        sent: RunFile = {"path": file.path, "blob_id": blob_id}
        made.append({**sent, "executable": True} if is_executable else sent)
    return made or None


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
    plain = [file for file in files if is_plain(file["path"])]
    for file, place in zip(plain, places_below(folder, [file["path"] for file in plain]), strict=True):
        await _download(client, file["blob_id"], place)


async def _download(client: AsyncClient, blob_id: str, place: Path) -> None:
    from skillery.cli.blobs import open_output

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out: cannot make '{place.parent}': {error.strerror}") from None
    async with client.open_blob(blob_id) as blob:
        with open_output(str(place)) as sink:
            async for piece in blob.pieces:
                sink.write(piece)
