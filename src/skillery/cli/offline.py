"""`skillery export` and `skillery packages`: skills and packages for a network without a connection to this server."""

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
from skillery.cli.install import RECORD
from skillery.cli.lock_files import check_digest, lock_of, proofs_of, write_skill
from skillery.cli.locks import resolve_lock
from skillery.cli.options import Target, home_options, json_option, target_options
from skillery.cli.output import clean, print_json
from skillery.cli.proof import address_of, read_answer

if TYPE_CHECKING:
    from skillery.client import AsyncClient
    from skillery.client.results import Locked

# -- `skillery export`: many skills in one archive ---------------------------------------------------------------------


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

    The archive has the stored files of each skill, verified by its digest, a lock of all skills and its proofs. FILE is
    written completely or not at all. `skillery install --locked --offline --from FILE` installs from it.
    """
    from skillery.cli.connection import with_client
    from skillery.proof.locks import encode_lock, encode_proofs

    if everything == bool(skills):
        raise click.UsageError("name the skills to export, or pass --all")

    async def write_all(client: AsyncClient, folder: Path) -> list[Locked]:
        names = [name async for name in _names(client, namespace)] if everything else list(skills)
        entries: list[Locked] = []
        for start in range(0, len(names), AT_ONCE):
            # Of all skills, the archive has the latest version alone.
            entries += await resolve_lock(client, names[start : start + AT_ONCE], required=not everything)
        for entry in entries:
            await write_skill(client, entry, folder)
            check_digest(entry, folder)
            await _write_origin(client, entry, folder)
        lock, proofs = await lock_of(client, entries, with_seal=False)
        (folder / RECORD).write_bytes(encode_lock(lock))
        proofs_of(folder / RECORD).write_bytes(encode_proofs(proofs))
        return entries

    with _archive(file.absolute()) as folder:
        entries = with_client(target, lambda client: write_all(client, folder))
        if not entries:
            raise CheckFailed("there is no skill to export; nothing was written")
    if as_json:
        print_json({"file": str(file), "lock": entries})
    else:
        click.echo(clean(f"{file}: {len(entries)} {'skill' if len(entries) == 1 else 'skills'}"))


async def _write_origin(client: AsyncClient, entry: Locked, folder: Path) -> None:
    """Write the statements of the registry from which a mirror has copied the version, if it has some."""
    from skillery.formats.origins import ORIGINS

    page = await client.list_attestations(entry["name"], version=entry["version"], limit=1)
    if page.get("origin"):  # an earlier release has no such field
        document = await read_answer(client, f"{address_of(entry['name'], entry['version'])}.origin.json")
        (folder / ORIGINS).mkdir(exist_ok=True)
        (folder / ORIGINS / f"{entry['name']}.json").write_bytes(document)


async def _names(client: AsyncClient, namespace: str) -> AsyncIterator[str]:
    cursor = None
    while True:
        page = await client.list_skills(namespace=namespace, detail="names", limit=AT_ONCE, cursor=cursor)
        for skill in page["skills"]:
            yield skill["name"]
        cursor = page["next_cursor"]
        if cursor is None:
            return


@contextmanager
def _archive(target_path: Path) -> Iterator[Path]:
    """Context manager: yield a new folder. After the block, its files become the archive at `target_path`."""
    partial = target_path.with_name(f".{target_path.name}.{secrets.token_hex(4)}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
            with tarfile.open(partial, "w:gz") as tar:
                for path in sorted(Path(folder).rglob("*")):
                    tar.add(path, path.relative_to(folder).as_posix(), recursive=False, filter=_without_user_and_time)
        partial.replace(target_path)
    except OSError as error:
        raise CheckFailed(
            f"cannot write '{target_path}': {os.strerror(error.errno or 0)}; nothing was written"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _without_user_and_time(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


# -- `skillery packages` -----------------------------------------------------------------------------------------------


@click.group()
def packages() -> None:
    """Download packages for servers without a network."""


@packages.command("fetch")
@click.option(
    "--npm",
    "npm_locks",
    metavar="LOCK",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The file npm.lock of a skill; several are possible.",
)
@click.option(
    "-o",
    "--output",
    "folder",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The folder of the files.",
)
@home_options
def fetch(npm_locks: Sequence[Path], folder: Path, target: Target) -> None:
    """Download the packages of locks into a folder.

    The files come from the registry in the settings (packages.npm_url), have the hashes of the locks, and are for the
    system of this machine. A server without a network gets the folder as packages.npm_store.
    """
    import asyncio

    from skillery.authoring.packages import fetch_npm_files
    from skillery.formats.requirements import InvalidLock

    folder.mkdir(parents=True, exist_ok=True)
    try:
        names = asyncio.run(fetch_npm_files(target.load().settings, [path.read_bytes() for path in npm_locks], folder))
    except InvalidLock as error:
        raise CheckFailed(f"the lock {error.message}") from None
    for name in names:
        click.echo(name)
