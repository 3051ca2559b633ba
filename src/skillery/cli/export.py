"""`skillery export`: many skills in one archive, for a network without a connection to this server."""

from __future__ import annotations

import os
import secrets
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skillery.cli.failures import CheckFailed
from skillery.cli.install import RECORD, write_skill
from skillery.cli.locks import lockfile_text, resolve_lock
from skillery.cli.options import Target, json_option, target_options
from skillery.cli.output import clean, print_json

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked

AT_ONCE = 1000
"""The limit of `resolve_skills`."""


@click.command(short_help="Write skills to one archive.")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("skills", metavar="[NAME[@SPEC]...]", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="The latest version of each skill that you see.")
@click.option("--namespace", metavar="NS", default="", help="With --all: only the skills of this namespace and below.")
@target_options
@json_option
def export(file: Path, skills: Sequence[str], everything: bool, namespace: str, target: Target, as_json: bool) -> None:
    """Write skills to FILE, a .tar.gz that `skillery import` reads on another server.

    The archive has the stored files of each skill, verified by its digest, and a lock of all skills. FILE is written
    completely or not at all.
    """
    from skillery.cli.connection import with_client

    if everything == bool(skills):
        raise click.UsageError("name the skills to export, or pass --all")

    async def write_all(client: AsyncClient, folder: Path) -> list[Locked]:
        names = [name async for name in _names(client, namespace)] if everything else list(skills)
        entries: list[Locked] = []
        for at in range(0, len(names), AT_ONCE):
            entries += await resolve_lock(client, names[at : at + AT_ONCE])
        for entry in entries:
            await write_skill(client, entry, folder)
        return entries

    with _archive(file.absolute()) as folder:
        entries = with_client(target, lambda client: write_all(client, folder))
        if not entries:
            raise CheckFailed("there is no skill to export; nothing was written")
        (folder / RECORD).write_text(lockfile_text(entries))
    if as_json:
        print_json({"file": str(file), "lock": entries})
    else:
        click.echo(clean(f"{file}: {len(entries)} {'skill' if len(entries) == 1 else 'skills'}"))


async def _names(client: AsyncClient, namespace: str) -> AsyncIterator[str]:
    cursor = None
    while True:
        page = await client.list_skills(namespace=namespace, detail="names", limit=AT_ONCE, cursor=cursor)
        for one in page["skills"]:
            yield one["name"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


@contextmanager
def _archive(place: Path) -> Iterator[Path]:
    """Context manager: yield a new folder, whose files become the archive at `place` after the `with` block."""
    partial = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
            with tarfile.open(partial, "w:gz") as tar:
                for path in sorted(Path(folder).rglob("*")):
                    tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_without_user)
        partial.replace(place)
    except OSError as error:
        raise CheckFailed(f"cannot write '{place}': {os.strerror(error.errno or 0)}; nothing was written") from None
    finally:
        partial.unlink(missing_ok=True)


def _without_user(about: tarfile.TarInfo) -> tarfile.TarInfo:
    about.uid = about.gid = about.mtime = 0
    about.uname = about.gname = ""
    return about
